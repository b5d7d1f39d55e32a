# %% [markdown]
# # 07 Add your own method in twenty lines, and watch it be tested
#
# **Question:** you have an idea what a token is worth. How long until you know whether it is any
# good, and whether your code does what you think?
#
# ## The idea
#
# TOVA keeps the entries that the current token looks at most. But a look at an entry with a tiny
# value moves nothing (notebook 02). So the score is attention times the length of the value. (VATP,
# arXiv 2406.12335, and AhaKV's value prior are relatives.)
#
# ## Twenty lines
#
# A `Score` rates the entries; `seen` holds what the block of queries saw: attention
# `[G, rho, m, n]` for $G$ KV heads with $\rho$ query heads each, $m$ queries and $n$ entries; keys
# and values `[G, n, d]`. Higher is kept. The `Method` puts the four answers together; its fields
# are its options. `register` makes its name known, so that it is used like any other method.

# %%
from dataclasses import dataclass

import numpy as np

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
# Every policy promises a few things, whatever its idea is: the output is what attention over the
# entries that are left gives; no entry changes its position; a due step leaves at most the budget;
# with room for all, nothing is lost; heads are not told apart by their number; a refused step
# changes nothing. `check_promises` tries them on random streams of several shapes.

# %%
import sys

sys.path += ["docs", "../docs"]  # `study` draws and tabulates; it is no part of the package

from study import checks

checks.promises(check_promises(lambda budget: methods.get("loud_values@recent=3", budget)))

# %% [markdown]
# Would the check have noticed a mistake? Try two classic ones. The first is a budget that is off by
# one:

# %%
checks.promises(check_promises(lambda budget: methods.get("loud_values@recent=3", budget + 1)))


# %% [markdown]
# The second is a score that lets the number of the KV head in, as a stray reshape does:


# %%
@dataclass(frozen=True)
class Reshaped(Score):
    def score(self, state, seen, candidates, room):
        G, rho, _, n = seen.attention.shape
        mixed = seen.attention[:, :, -1].reshape(rho, G, n).mean(axis=0)  # should be (G, rho, n)
        return mixed * np.linalg.norm(seen.values, axis=-1)


def broken(budget):
    return Policy("broken", Reshaped(), EveryBlock(), Edges(recent=3), Entries(budget), Full())


checks.promises(check_promises(broken))

# %% [markdown]
# The same promises, on many more streams, hold every method of the registry in CI
# (`tests/test_invariants.py`).
#
# ## Is it any good?
#
# First try the idea on a trace, which takes a second: all methods have the same number of entries,
# so `mass` and `error` can be compared.

# %%
from kvlab.reference import (
    Transformer,
    budget_entries,
    judge,
    load_tokenizer,
    methods,
    record_trace,
)
from kvlab.reference.models import embedded_directory
from kvlab.reference.tasks import jumps
from study import replays

directory = embedded_directory("jumps")
model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
problem = jumps.held_out(1, size=jumps.SIZES[250])[0]
stop = tokenizer.encode(jumps.END).ids[0]
trace = record_trace(model, tokenizer.encode(problem.prompt).ids, 192, stop, name="jumps")
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
# Then try it on whole programs: the model writes their runs under each method.

# %%
from kvlab.fast.lab.sweep.compare import compare
from kvlab.fast.lab.sweep.plan import Sweep
from study import stored

ranked = ("random", "h2o", "tova@per_head=true", "loud_values", "loud_values@recent=60")
short = "jumps@fewest=18,most=22"
asked = {"problems": 6, "measured": 1, "to_first_error": True}
stored.results(
    compare(Sweep(ranked, ("70%",), tasks=(short,), backend="reference", **asked)).summary
)

# %% [markdown]
# No. In this task a look at the current token alone is a poor guide, weighted by values or not, and
# more recent entries do not save it. An idea is cheap; these two cells test it before anybody
# writes a kernel.
#
# ## To stay
#
# The class needs nothing else. In a file of your own, it is known to every command: `kvlab
# methods`, `compare`, `plan`, `view`, `conformance run` and all others, on any model of
# transformers.
#
# ```
# KVLAB_METHODS=loud_values.py kvlab compare --methods "h2o loud_values caote:loud_values"
# ```
#
# Three files make it part of kvlab (*Add a method*): its file in `reference/methods/`, its test
# with one example per equation worked out by hand, and its page. A twin in `fast/methods/` makes
# it fast.
#
# ## Exercises
#
# **1.** Write a score `Newest` that makes the policy below keep exactly the newest entries.
# (Positions are in `seen.positions` `[G, n]`.)


# %% tags=["solution"] jupyter={"source_hidden": true}
@dataclass(frozen=True)
class Newest(Score):
    def score(self, state, seen, candidates, room):
        return seen.positions.astype(float)


# %% tags=["check"]
from kvlab.reference import replay


def newest(budget):
    return Policy("newest", Newest(), EveryBlock(), Edges(), Entries(budget), Full())


(kept,) = next(iter(replay(trace, [newest(60)])))
t = len(trace.tokens)
assert kept.kept(t - 1).tolist() == [list(range(t - 60, t))] * 2
assert not [each for each in check_promises(newest) if each.objection]

# %% [markdown]
# **2.** A score that remembers: write `LongestLooked`, which counts for every entry how many
# queries gave it at least 5 % of their attention (mean over the query heads), and keeps those with
# the largest counts. State that belongs to an entry is announced in `columns` and leaves with it.


# %% tags=["solution"] jupyter={"source_hidden": true}
@dataclass(frozen=True)
class LongestLooked(Score):
    @property
    def columns(self):
        return {"looks": Column("queries that looked at the entry")}

    def observe(self, state, seen):
        looked = (seen.attention.mean(axis=1) >= 0.05).sum(axis=1)
        return state.with_entries(looks=state.entries["looks"] + looked)

    def score(self, state, seen, candidates, room):
        return state.entries["looks"]


# %% tags=["check"]
from kvlab.reference import Source, random_stream, run_stream


def looking(budget):
    return Policy("looks", LongestLooked(), EveryBlock(), Edges(), Entries(budget), Full())


assert not [each for each in check_promises(looking) if each.objection]
stream = random_stream(Source("looks"), prompt=0, generated=24)
results = list(run_stream(looking(100), stream))
counted = sum(
    np.pad((each.seen.attention.mean(axis=1) >= 0.05).sum(axis=1), ((0, 0), (0, 24 - n)))
    for n, each in enumerate(results, start=1)
)
scores = looking(100).score.score(results[-1].cache.state, results[-1].seen, None, 0)
assert np.array_equal(scores, counted)

# %% [markdown]
# **3.** Break a promise on purpose: write `partial(budget)`, a policy of which `check_promises`
# says that the output is not dense attention without the evicted entries, and nothing else. (One
# field of `Policy` does it.)

# %% tags=["solution"] jupyter={"source_hidden": true}
from dataclasses import replace


def partial(budget):
    return replace(LoudValues(recent=3).policy(budget), evict_before_attend=True)


# %% tags=["check"]
broken_promises = [each.promise for each in check_promises(partial) if each.objection]
assert broken_promises == ["output is dense attention without the evicted"]
