# %% [markdown]
# # 00 The KV cache, and why it hurts
#
# **Question:** an 8-billion-parameter model has 16 GB of weights, an H200 has 141 GB of memory.
# Where do the other 125 GB go, and why does the model get slower while it writes?
#
# You know attention: a token's query is compared with the keys of all earlier tokens, and the
# resulting weights mix their values. A model that writes needs these keys and values again for
# every further token. So it stores them: this store is the *KV cache*.

# %% [markdown]
# ## What is stored
#
# kvlab has a small trained model inside. It runs programs by writing out every step, such as
# *a = a + b = 3 + 4 = 7*, until it comes to the end.

# %%
import numpy as np

from kvlab.reference import Transformer, advance, load_tokenizer, methods, prefill
from kvlab.reference.models import embedded_directory
from kvlab.reference.tasks import jumps

directory = embedded_directory("jumps")
model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
problem = jumps.held_out(1, size=jumps.SIZES[250])[0]
prompt = tokenizer.encode(problem.prompt).ids
solution = tokenizer.encode(problem.solution).ids
print(problem.prompt.strip())
print(problem.solution.strip())

# %% [markdown]
# Read the prompt, then feed the solution token by token. After every token the session holds one
# more key and one more value per layer and KV head.

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
# ## What it saves
#
# The cache is no approximation. Reading prompt and solution at once, with nothing stored before,
# gives the same logits up to rounding. Without a cache every single token would cost this reading
# of the whole text.

# %%
at_once, _ = advance(prefill(model, methods.get("full"), prompt)[1], solution)
print(f"largest difference of a logit: {np.abs(at_once - np.stack(stepwise)).max():.1e}")

# %% [markdown]
# ## What it costs
#
# Per token the cache stores a key and a value of $d$ channels, for each of $G$ KV heads, in each of
# $L$ layers, at 2 bytes per number:
#
# $$\text{bytes per token} = 2 \cdot 2 \cdot L \cdot G \cdot d$$

# %%
import sys

sys.path += ["docs", "../docs"]  # `study` draws and tabulates; it is no part of the package

from kvlab.reference import SHAPES, Shape, find_shape
from study import costs

shape = find_shape(str(directory))
print("formula: ", shape.token_bytes, "bytes a token")
print("measured:", session.nbytes / session.seen)

# %% [markdown]
# The table does the same arithmetic for real models, from their published configurations. Llama 2
# 7B has one KV head for each of its 32 query heads. The other models in the table let several query
# heads share one KV head (*grouped-query attention*), which divides the cache by the size of the
# group.

# %%
costs.cache_sizes(list(SHAPES.values()), tokens=32768)

# %% [markdown]
# The last column is the point where the cache weighs as much as the model. The tokens of all users
# count together: Llama 3.1 8B reaches this point with four texts of 32,768 tokens.

# %%
from kvlab.reference import HARDWARE

chosen = [SHAPES[name] for name in ("llama-2-7b", "llama-3.1-8b", "qwen2.5-7b", "qwen3-4b")]
costs.memory_over_tokens(chosen, HARDWARE["h200"], batch=32, tokens=32768)

# %% [markdown]
# ## Why it gets slower
#
# One step of decoding multiplies matrices with a single vector per sequence. The arithmetic is
# small; the time goes into *reading*: all weights once per step for the whole batch, and the cache
# of every sequence. The weights are shared by the batch, the caches are not. `kvlab plan` counts
# these bytes and divides them by the bandwidth (a roofline, not a measurement: see *Plan*).

# %%
from kvlab.reference import Plan

full = Plan(SHAPES["llama-3.1-8b"], HARDWARE["h200"], methods.get("full"), 512, 16384, batch=48)
costs.time_of_steps(full)

# %% [markdown]
# ## What forgetting would bring
#
# Suppose that a quarter of the entries is enough, or that all are kept with 4 bits instead of 16.
# How many sequences of 16,896 tokens fit beside the weights, and how many tokens per second come
# out?

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
# That is the whole motive of this project. The other notebooks ask: *which* entries can be
# forgotten, or kept less precisely, before the model gives wrong answers?
#
# ## Exercises
#
# **1.** Llama 3.1 8B lets 4 query heads share a KV head. Write `without_grouping(shape)`: the bytes
# per token of the same model with one KV head per query head.

# %% tags=["solution"] jupyter={"source_hidden": true}
from dataclasses import replace


def without_grouping(shape: Shape) -> int:
    return replace(shape, kv_heads=shape.heads).token_bytes


# %% tags=["check"]
assert without_grouping(SHAPES["llama-3.1-8b"]) == 4 * SHAPES["llama-3.1-8b"].token_bytes
assert without_grouping(SHAPES["llama-2-7b"]) == SHAPES["llama-2-7b"].token_bytes

# %% [markdown]
# **2.** Write `longest_text(shape, hardware, batch)`: how many tokens each of `batch` sequences can
# have until weights and caches together fill the device's memory. Count whole tokens; nothing else
# needs memory.


# %% tags=["solution"] jupyter={"source_hidden": true}
def longest_text(shape: Shape, hardware, batch: int) -> int:
    return int((hardware.memory - shape.weight_bytes) // (batch * shape.token_bytes))


# %% tags=["check"]
llama, h200 = SHAPES["llama-3.1-8b"], HARDWARE["h200"]
assert longest_text(llama, h200, 1) == 953_212
assert llama.weight_bytes + 32 * longest_text(llama, h200, 32) * llama.token_bytes <= h200.memory
assert longest_text(llama, h200, 32) == 29_787

# %% [markdown]
# **3.** From which length on does reading the cache of *one* sequence take longer than reading the
# weights? Write `tokens_until_cache_dominates(shape)`: the smallest number of tokens whose cache
# has more bytes than the weights. (Compare with the last column of the table.)


# %% tags=["solution"] jupyter={"source_hidden": true}
def tokens_until_cache_dominates(shape: Shape) -> int:
    return shape.weight_bytes // shape.token_bytes + 1


# %% tags=["check"]
for known in SHAPES.values():
    tokens = tokens_until_cache_dominates(known)
    assert tokens * known.token_bytes > known.weight_bytes
    assert (tokens - 1) * known.token_bytes <= known.weight_bytes
