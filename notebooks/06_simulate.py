# ---
# jupyter:
#   read: 2026-11-26 2ba0688f
# ---

# %% [markdown]
# # 06 Simulate: traces and the best keep sets
#
# **Question:** you have recorded one generation. Which methods would have kept the right entries,
# and how good could any method be? To find out, you need not run the model again. (You do to find
# out whether the answer is right: a trace has the text of the full cache.)
#
# ## A trace
#
# A trace holds the queries, keys and values of every layer. `kvlab trace` records one from any
# Hugging Face decoder; here the embedded model runs a program. **Predict first:** the cache of this
# text has 261 KiB. Is the trace larger?

# %%
from pathlib import Path
from tempfile import TemporaryDirectory

from classroom import Exercises, model, prompt, stop
from kvlab.reference import load_trace, methods, record_trace, save_trace

attempt = Exercises("06_simulate", globals())
with TemporaryDirectory() as folder:
    file = Path(folder) / "trace.npz"
    save_trace(record_trace(model, prompt, 192, stop, name="jumps"), file)
    print(f"{file.stat().st_size / 1024:.0f} KiB")
    trace = load_trace(file)
L, G, rho, t, d = trace.shape
print(f"{L} layers, {G} KV heads, {rho} query heads each, {t} tokens, {d} channels")
print(f"{trace.prompt} tokens were given, {t - trace.prompt} written")

# %% [markdown]
# It is, because it holds the queries, too, and 64 bits per number.
#
# ## Judge
#
# A replay asks each method what it would keep. `mass` is the share of the full cache's attention
# that falls on kept entries, `error` the relative change of the attention output, `hits` how often
# an entry was still there when it mattered again. `random` and `best` are the mass of random
# eviction and of the best keep sets, `skill` is how far from the one to the other a method came.
# **Predict first:** what share of the attention is lost if 30 % of the entries are evicted?

# %%
from kvlab.reference import budget_entries, judge
from study import replays

budget = budget_entries("70%", t)
specs = ("streaming_llm", "h2o", "tova", "raas@pin_prompt=false,threshold=0.01")
specs += ("snapkv@window=16,schedule=every_block", "ahakv@recent=16", "caote:h2o", "caote:tova")
judged = list(judge(trace, [methods.get(spec, budget) for spec in specs]))
replays.judgements(specs, judged)

# %% [markdown]
# H2O loses 3.6 %, StreamingLLM 5.6 % and random eviction 6.1 %. CAOTE applied to TOVA does worse
# than random eviction on this text; we have not found out why.
#
# ## The best keep sets
#
# `best` is not a method but a bound that can be reached: the keep sets with the largest attention
# mass, found with the whole future known. Evicted entries cannot come back, so kvlab solves an
# assignment problem: each of B slots holds one entry at a time. The picture has one KV head of
# layer 2; the red line is the end of the prompt. **Predict first:** when do the best keep sets
# evict an entry?

# %%
from kvlab.reference import Layer, best_left

layer = Layer.of(trace, 2)
attention = layer.full_attention(0, t).mean(axis=1)[0]
left = {spec: judged[2][specs.index(spec)].fate.left[0] for spec in ("h2o", "caote:h2o")}
left["best possible"] = best_left(attention, trace.prompt, budget)
replays.lifetimes(left, trace.prompt)

# %% [markdown]
# When little attention is still to come, so entries of every age are evicted.
#
# At 70 % the best keep sets hold 98 % of the attention, H2O 96 % and StreamingLLM 94 %. A few
# percent decide: of 300 programs of 45 to 65 steps, the embedded model solves 98 % under H2O at 70
# % of the entries and none under StreamingLLM, because one wrong sum ends a program. An *oracle*,
# which keeps what the rest of the run needs, solves 99 % of them with half of the entries.
#
# ## Which method for which text?
#
# Synthetic traces of known structure show what a method is made for. The figure is `skill`: 0 % is
# random eviction, 100 % the best there could be; 64 of 224 entries may be kept. **Predict first:**
# which method finds needles?

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
# On `recency` only the newest entries matter. On `needles`, no token attends to the needle before
# the end, so no score made of past attention does much better than random eviction. On `recurrence`
# remembering the latest use (RaaS) is best, and sums (H2O) are worst.
#
# **In three lines.** A trace lets every method be judged without the model. The best keep sets show
# how good a method could be. Attention mass hardly separates methods, but a small loss can end a
# program.
#
# ## Exercises
#
# **1.** Write `mass(attention, left)`: for one KV head, the share of attention that each token pays
# to entries that are still there. `attention` is `[t, t]`, and `left[j]` is the last token that
# sees entry `j`.

# %% tags=["exercise"]
import numpy as np


def mass(attention, left): ...


attempt(1)

# %% [markdown]
# **2.** Write `forgetful(budget)`: a policy with this budget that is *worse* than evicting at
# random on `made["recency"]`. Any composition will do.


# %% tags=["exercise"]
def forgetful(budget): ...


attempt(2)
