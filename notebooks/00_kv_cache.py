# ---
# jupyter:
#   read: 2026-11-26 57c2a518
# ---

# %% [markdown]
# # 00 The KV cache, and why it hurts
#
# **Question:** an 8-billion-parameter model has 16 GB of weights, an H200 has 141 GB of memory.
# Where do the other 125 GB go, and why does the model get slower while it writes?
#
# You know attention: a token's query is compared with the keys of all earlier tokens, and the
# resulting weights mix their values. A model needs these keys and values again for every further
# token, so it stores them in the *KV cache*.
#
# `reference/nano.py` has the whole subject in one file, and the playground (`make playground`)
# shows methods at work in the browser.

# %% [markdown]
# ## What is stored
#
# kvlab ships with a small model, the *embedded model*, which runs *jump programs*. The prompt
# states the registers, the lines, and the line that runs first. Line `L3 a = a + h, then go to
# L<a>` adds h to a, modulo 10. The sum is the number of the next line, and L0 ends the program. The
# model writes out every line that runs: `c (4) + b (4) = 8 → c=8` says that c (4) and b (4) have
# the sum 8, which goes into c; so L8 runs next. To the model a line is nine tokens, such as
# `L3 a . + h . = . .`, and a register with its value is one, such as `b4`.

# %%
import numpy as np

from classroom import Exercises, directory, model, problem, prompt, tokenizer
from kvlab.reference import advance, methods, prefill
from kvlab.reference.tasks.jumps import read_tokens

attempt = Exercises("00_kv_cache", globals())
solution = tokenizer.encode(problem.solution).ids
print("".join(read_tokens(problem.text.split(" "))))

# %% [markdown]
# The next cell reads the prompt, then the solution token by token. **Predict first:** how many keys
# does layer 0 hold at the end, per KV head?

# %%
_, session = prefill(model, methods.get("full"), prompt)
stepwise = []
for token in solution:
    logits, session = advance(session, [token])
    stepwise.append(logits[-1])
cache = session.caches[0]
print("tokens seen           ", session.seen)
print("layers                ", len(session.caches))
print("keys of layer 0       ", cache.keys.vectors.shape, " [KV heads, entries, channels]")
print("bytes, all layers     ", session.nbytes)

# %% [markdown]
# One for every token of prompt and solution.
#
# ## What it saves
#
# Without a cache, every new token would need the keys and values of the whole text again. The next
# cell reads the solution in one pass. **Predict first:** do the logits differ from those above?

# %%
at_once, _ = advance(prefill(model, methods.get("full"), prompt)[1], solution)
print(f"largest difference of a logit: {np.abs(at_once - np.stack(stepwise)).max():.1e}")

# %% [markdown]
# The cache is exact, up to rounding.
#
# ## What it costs
#
# A token has a key and a value of $d$ channels for each of $G$ KV heads in each of $L$ layers, at 2
# bytes per number:
#
# $$\text{bytes per token} = 2 \cdot 2 \cdot L \cdot G \cdot d$$
#
# **Predict first:** how many bytes does the embedded model store per token? Its layers, KV heads
# and channels are printed above.

# %%
from kvlab.reference import SHAPES, Shape, find_shape
from study import costs

shape = find_shape(str(directory))
print("formula: ", shape.token_bytes, "bytes a token")
print("measured:", session.nbytes / session.seen)

# %% [markdown]
# The table does the same arithmetic for real models. Llama 2 7B has one KV head per query head. In
# the other models several query heads share one KV head (*grouped-query attention*), which divides
# the cache by the size of the group. **Predict first:** how many texts of 32,768 tokens weigh as
# much as Llama 3.1 8B itself?

# %%
costs.cache_sizes(list(SHAPES.values()), tokens=32768)

# %% [markdown]
# The last column is the number of tokens, of all users together, whose cache weighs as much as the
# model. Llama 3.1 8B reaches it with four such texts. **Predict first:** which models serve 32 such
# texts on one H200 of 141 GB?

# %%
from kvlab.reference import HARDWARE

chosen = [SHAPES[name] for name in ("llama-2-7b", "llama-3.1-8b", "qwen2.5-7b", "qwen3-4b")]
costs.memory_over_tokens(chosen, HARDWARE["h200"], batch=32, tokens=32768)

# %% [markdown]
# Only Qwen2.5 7B.
#
# ## Why it gets slower
#
# A step of decoding does little arithmetic. Its time goes into *reading* all weights, once for the
# whole batch, and the cache of every sequence, which grows with the text. `kvlab plan` divides
# these bytes by the bandwidth, so its figures are estimates (a *roofline*) and not measurements.
# The picture has 48 sequences of Llama 3.1 8B on an H200. **Predict first:** what takes longer
# after 16,384 written tokens, attention or everything else?

# %%
from kvlab.reference import Plan

full = Plan(SHAPES["llama-3.1-8b"], HARDWARE["h200"], methods.get("full"), 512, 16384, batch=48)
costs.time_of_steps(full)

# %% [markdown]
# Attention does, because it reads the cache.
#
# ## What eviction would bring
#
# Suppose that a quarter of the entries is enough, as for the method H2O, which keeps the entries
# with the largest sums of attention; or that all are kept with 4 bits instead of 16, as for KIVI
# (with scales, and the newest entries at 16). A
# tenth of the memory stays free. **Predict first:** how many more sequences of 16,896 tokens fit?

# %%
budget = (full.prompt + full.generated) // 4
plans = {
    name: Plan(full.shape, full.hardware, policy, full.prompt, full.generated)
    for name, policy in {
        "full": methods.get("full"),
        f"h2o, {budget:,} entries": methods.get("h2o", budget),
        "kivi, 4 bits": methods.get("kivi"),
    }.items()
}
costs.servings(plans)

# %% [markdown]
# A step reads all caches, but the weights once for all sequences: the more sequences share the
# memory, the more tokens a second the device writes. H2O's caches are full early, so its mean step
# reads most.
#
# **In three lines.** The cache holds a key and a value per token, layer and KV head. In long texts
# it outgrows the weights, and reading it takes most of a step's time. The other notebooks ask which
# entries can be evicted, or kept less precisely, before the model gives wrong answers.
#
# ## Exercises
#
# A shape knows its `heads`, `kv_heads`, `token_bytes` and `weight_bytes`, a device its `memory`.
#
# **1.** Llama 3.1 8B lets 4 query heads share a KV head. Write `without_grouping(shape)`: the bytes
# per token of the same model with one KV head per query head.

# %% tags=["exercise"]
from dataclasses import replace


def without_grouping(shape: Shape) -> int: ...


attempt(1)

# %% [markdown]
# **2.** Write `longest_text(shape, hardware, batch)`: how many tokens each of `batch` sequences can
# have until weights and caches together fill the device's memory. Count whole tokens; nothing else
# needs memory.


# %% tags=["exercise"]
def longest_text(shape: Shape, hardware, batch: int) -> int: ...


attempt(2)
