# ---
# jupyter:
#   read: 2026-11-26 3d6a4c0f
# ---

# %% [markdown]
# # 07 Add your own method in twenty lines, and watch it be tested
#
# **Question:** you have an idea what a token is worth. How long until you know whether it is any
# good, and whether your code does what you mean?
#
# ## The idea
#
# TOVA keeps the entries to which the current token attends most. But attention to an entry with a
# tiny value moves nothing (notebook 02), so our score is attention times the length of the value.
# (VATP, arXiv 2406.12335, and AhaKV's value prior are relatives.)
#
# ## Twenty lines
#
# A `Score` rates the entries, and the highest are kept. `seen` holds what the block saw, the tokens
# of one step: attention `[G, rho, m, n]` for $G$ KV heads with $\rho$ query heads each, $m$ queries
# and $n$ entries; keys and values `[G, n, d]`. The `Method` puts the four answers together: the
# score, when to evict (`EveryBlock`), what is protected (`Edges`), how many entries are kept
# (`Entries`) and how precisely (`Full`). Its fields are its options. `register` makes its name
# known, so that it is used like any other method.

# %%
from dataclasses import dataclass

import numpy as np

from classroom import Exercises, model, prompt, stop
from kvlab.reference import (
    Column,
    Edges,
    Entries,
    EveryBlock,
    Full,
    Method,
    Policy,
    Score,
    check_promises,
    methods,
)

attempt = Exercises("07_add_your_method", globals())


@dataclass(frozen=True)
class ValueWeightedAttention(Score):
    """Attention of the last query times the length of the value."""

    def score(self, state, seen, candidates, room):
        attention = seen.attention[:, :, -1].mean(axis=1)
        return attention * np.linalg.norm(seen.values, axis=-1)


@methods.register
@dataclass(frozen=True)
class LoudValues(Method):
    """Keep what moves the output most, and the newest entries."""

    recent: int = 16

    name = "loud_values"
    source = "this notebook"

    def policy(self, budget):
        protect = Edges(recent=self.recent)
        return Policy(
            self.name, ValueWeightedAttention(), EveryBlock(), protect, Entries(budget), Full()
        )


# %% [markdown]
# ## Watch it be tested
#
# Every policy must keep the promises of the table, whatever its idea is. `check_promises` tries
# them on random streams of several shapes. **Predict first:** does ours keep all of them?

# %%
from study import checks

spec = "loud_values@recent=3"
checks.promises(check_promises(lambda budget: methods.get(spec, budget)))

# %% [markdown]
# It does. **Predict first:** which promise breaks if the budget is off by one?

# %%
checks.promises(check_promises(lambda budget: methods.get(spec, budget + 1)))


# %% [markdown]
# The one on the budget: at token 9 a cache with a budget of 9 holds 10 entries. **Predict first:**
# which breaks if a wrong reshape mixes the heads?


# %%
@dataclass(frozen=True)
class Reshaped(Score):
    def score(self, state, seen, candidates, room):
        G, rho, _, n = seen.attention.shape
        wrong = seen.attention[:, :, -1].reshape(rho, G, n)  # instead of (G, rho, n)
        mixed = wrong.mean(axis=0)
        return mixed * np.linalg.norm(seen.values, axis=-1)


def broken(budget):
    return Policy("broken", Reshaped(), EveryBlock(), Edges(recent=3), Entries(budget), Full())


checks.promises(check_promises(broken))

# %% [markdown]
# The one on heads: in another order they evict other entries.
#
# ## Is it any good?
#
# First try the idea on a trace, which takes a second. All methods have the same number of entries,
# so `mass` and `error` can be compared. **Predict first:** does the idea keep more of the attention
# than TOVA?

# %%
from kvlab.reference import budget_entries, judge, record_trace
from study import replays

trace = record_trace(model, prompt, 192, stop, name="jumps")
budget = budget_entries("70%", len(trace.tokens))
specs = [
    "h2o",
    "tova@per_head=true",
    "loud_values",
    "loud_values@recent=60",
    "caote:h2o",
    "caote:loud_values",
]
replays.judgements(specs, list(judge(trace, [methods.get(spec, budget) for spec in specs])))

# %% [markdown]
# No, it has a mass of 0.929 and TOVA 0.930, but its error is smaller (0.121 against 0.143). Then
# let the embedded model write six programs under each method. Each control protects what its method
# protects: `random:h2o` the newest half of the budget, `random@recent=16` the newest 16. (Columns
# as in notebook 01.) **Predict first:** does the idea beat random eviction?

# %%
from classroom import try_methods

ranked = ["random:h2o", "h2o", "random@recent=16", "loud_values"]
ranked += ["random@recent=60", "loud_values@recent=60"]
try_methods(ranked, ["70%"], problems=6)

# %% [markdown]
# No: it solves as little as random eviction with the same protection, and its error is larger.
#
# ## To stay
#
# Name its file in `KVLAB_METHODS`, and every command knows the class, on any transformers model.
# *Add a method* says how it becomes part of kvlab.
#
# ```
# KVLAB_METHODS=loud_values.py kvlab compare --methods "h2o loud_values caote:loud_values"
# ```
#
# **In three lines.** A method is a score with three other answers. kvlab tests the promises of
# every method. An idea counts if it beats random eviction with the same protection.
#
# ## Exercises
#
# **1.** Write a score `Newest` that makes the policy below keep exactly the newest entries.
# (Positions are in `seen.positions` `[G, n]`.)


# %% tags=["exercise"]
@dataclass(frozen=True)
class Newest(Score):
    def score(self, state, seen, candidates, room): ...


attempt(1)

# %% [markdown]
# **2.** A score that remembers: write `LongestSeen`, which counts for every entry how many
# queries gave it at least 5 % of their attention (mean over the query heads), and keeps those with
# the largest counts. State that belongs to an entry is announced in `columns` and evicted with it.


# %% tags=["exercise"]
@dataclass(frozen=True)
class LongestSeen(Score):
    columns = {"queries": Column("queries that attend to the entry")}

    def observe(self, state, seen): ...

    def score(self, state, seen, candidates, room): ...


attempt(2)
