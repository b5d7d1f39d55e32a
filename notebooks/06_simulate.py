# %% [markdown]
# # 06 Simulate: traces, the oracle, and planning for an H200
#
# **Question:** you have recorded one generation. Which of twenty methods would have kept the right
# entries, how good could any method be, and how many GPUs would it save?
#
# None of that needs the model again.
#
# ## A trace
#
# A trace holds the queries, keys and values that every layer was handed. `kvlab trace` records one
# from any Hugging Face decoder; here the embedded model runs a program.

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

from kvlab.reference import (
    Transformer,
    load_tokenizer,
    load_trace,
    methods,
    record_trace,
    save_trace,
)
from kvlab.reference.models import embedded_directory
from kvlab.reference.tasks import jumps

directory = embedded_directory("jumps")
model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
problem = jumps.held_out(1, size=jumps.SIZES[250])[0]
prompt = tokenizer.encode(problem.prompt).ids
stop = tokenizer.encode(jumps.END).ids[0]
with TemporaryDirectory() as folder:
    file = Path(folder) / "trace.npz"
    save_trace(record_trace(model, prompt, 192, stop, name="jumps"), file)
    print(f"{file.stat().st_size / 1024:.0f} KiB")
    trace = load_trace(file)
L, G, rho, t, d = trace.shape
print(f"{L} layers, {G} KV heads, {rho} query heads each, {t} tokens, {d} channels")
print(f"{trace.prompt} tokens were given, {t - trace.prompt} written")

# %% [markdown]
# ## Judge
#
# A replay asks each policy the same questions in the same order as the model would. `mass` is the
# share of the full cache's attention that falls on kept entries, `error` the relative change of
# the attention output, `hits` how often an entry was there when it mattered again.

# %%
import sys

sys.path += ["docs", "../docs"]  # `study` draws and tabulates; it is no part of the package

from kvlab.reference import budget_entries, judge
from study import replays

budget = budget_entries("70%", t)
specs = ("streaming_llm", "h2o", "tova", "raas@pin_prompt=false,threshold=0.01")
specs += ("snapkv@window=16,schedule=every_block", "ahakv@recent=16", "caote:h2o", "caote:tova")
judged = list(judge(trace, [methods.get(spec, budget) for spec in specs]))
replays.judgements(specs, judged)

# %% [markdown]
# ## The oracle
#
# `best` is no method but a bound that can be reached: the keep sets with the largest attention
# mass, found with the whole future known. It is not the set of the heaviest entries at each token,
# as what has left cannot come back. kvlab solves it exactly as an assignment problem: B slots hold
# one entry each, and a slot's history is a chain of entries that take each other's place.

# %%
from kvlab.reference import Layer, best_left

layer = Layer.of(trace, 2)
attention = layer.full_attention(0, t).mean(axis=1)[0]
left = {spec: judged[2][specs.index(spec)].fate.left[0] for spec in ("h2o", "caote:h2o")}
left["best possible"] = best_left(attention, trace.prompt, budget)
replays.lifetimes(left, trace.prompt)

# %% [markdown]
# The oracle drops an entry right after it was needed for the last time, some of them soon after
# birth.
#
# At 70 %, the table above says, the best keep sets hold 98 % of the attention, H2O 96 % and
# StreamingLLM 94 %. A few percent decide: of longer programs of this kind, H2O solves 98 % at 70 %
# of the memory and StreamingLLM none (the report of the study has both). The mass counts every
# token alike, but one wrong sum ends a program. An oracle that knows which entries the rest of the
# run needs solves 99 % of these programs at half of the memory.
#
# ## Which method for which text?
#
# Synthetic traces whose structure is known say what a method is made for. The figure is `skill`: 0
# % is evicting at random, 100 % the best there could be.

# %%
from kvlab.reference import workloads

made = {
    "recency": workloads.pure_recency(tokens=224, prompt=48),
    "sinks": workloads.sinks(tokens=224, prompt=48),
    "needles": workloads.needles(tokens=224, prompt=128),
    "no structure": workloads.exchangeable(tokens=224, prompt=128),
    "recurrence": workloads.periodic_recurrence(tokens=224, prompt=16, recurring=16, bound=32),
}
candidates = (
    "streaming_llm",
    "h2o",
    "tova",
    "raas@pin_prompt=false,threshold=0.05",
    "ahakv@recent=16",
)
replays.skills(made, candidates, budget=64)

# %% [markdown]
# On `recency`, all that matters is to keep the newest entries. On `needles`, which no token looks
# at before the end, every method that scores past attention does no better than chance: no score
# made of the past can know the needles. Where there is no structure, nothing can be gained, and
# nothing lost.
#
# ## Plan for an H200
#
# The next cell puts the same policies into the cost model: Llama 3.1 8B, 512 tokens given, 16,384
# written, a budget of a quarter. How many sequences fit, and how fast are they?

# %%
from kvlab.reference import HARDWARE, SHAPES, Plan
from study import costs

length, shape, gpu = 512 + 16384, SHAPES["llama-3.1-8b"], HARDWARE["h200"]
plans = {
    spec: Plan(shape, gpu, methods.get(spec, entries), 512, 16384)
    for spec, entries in {
        "full": None,
        "kivi": None,
        "desirekv": None,
        "h2o": length // 4,
        "caote:h2o": length // 4,
        "lazy_eviction": length // 4,
    }.items()
}
costs.servings(plans)

# %% [markdown]
# These are bytes and operations divided by what the data sheet promises, not measurements (*Plan*
# says what is assumed, and how it compares with what the papers measured). The cheapest plan is
# worth nothing if the answers are wrong: that is what the rest of this project measures.
#
# ## Exercises
#
# **1.** Write `mass(attention, left)`: for one KV head, the share of attention that each token pays
# to present entries. `attention` is `[t, t]`, `left[j]` the token after which entry `j` left; an
# entry is looked at by the tokens up to `left[j]`.

# %% tags=["solution"] jupyter={"source_hidden": true}
import numpy as np


def mass(attention, left):
    present = left >= np.arange(len(left))[:, None]
    return (attention * present).sum(axis=1)


# %% tags=["check"]
fate = judged[2][1].fate
assert np.allclose(mass(attention, fate.left[0]), fate.mass[0])

# %% [markdown]
# **2.** Write `forgetful(budget)`: a policy with this budget that is *worse* than evicting at
# random on `made["recency"]`. Any composition will do.


# %% tags=["solution"] jupyter={"source_hidden": true}
def forgetful(budget):
    return methods.get("h2o@recent=0", budget)


# %% tags=["check"]
from kvlab.reference import skill

((found,),) = judge(made["recency"].trace, [forgetful(64)])
assert found.size == 64
assert skill([found]) < 0

# %% [markdown]
# **3.** How many times as many tokens per second does the H200 of the plan above write under
# LazyEviction as with the full cache, each with as many sequences as fit? Write `faster(plans)`.


# %% tags=["solution"] jupyter={"source_hidden": true}
def faster(plans):
    full, lazy = (
        plans[name].with_batch(plans[name].largest_batch).tokens_per_second
        for name in ("full", "lazy_eviction")
    )
    return lazy / full


# %% tags=["check"]
rates = {row[0]: float(row[-1].replace(",", "")) for row in costs.servings(plans).rows}
assert abs(faster(plans) * rates["full"] / rates["lazy_eviction"] - 1) < 0.01
