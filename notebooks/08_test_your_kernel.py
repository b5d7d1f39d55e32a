# %% [markdown]
# # 08 Test your own kernel
#
# **Question:** you have written a fast kernel, in any language. How do you know that it computes
# what the paper says, also in the cases that you did not think of?
#
# kvlab publishes *test vectors*: inputs, expected outputs, tolerances, for every method and for the
# building blocks that they share. They are grouped by what they stress: ties, entries with nearly
# all attention, groups that do not divide, 16-bit inputs. `check` runs a function on them.
#
# ## A kernel with a hidden fault
#
# The next cell has CAOTE's score as the paper prints it, in float32. A function names the inputs
# that it wants; `kvlab conformance show eviction_error` lists them.

# %%
import sys

sys.path += ["docs", "../docs"]  # `study` draws and tabulates; it is no part of the package

import numpy as np

from kvlab.reference.conformance import check
from study import checks


def printed(h, values):
    """h: [G, k, n], retention of k query heads per KV head; values: [G, n, d]."""
    output = h @ values
    distance = np.linalg.norm(output[:, :, None] - values[:, None], axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return h / (1 - h) * distance


report = check("eviction_error", printed)
checks.vector_groups(report)

# %% [markdown]
# On most inputs it is right, which is why such a fault survives a test with random numbers. Two
# kinds of failure are in the table. The function does not do FastCAOTE or other norms; that is no
# fault, and a function may say so by raising `NotImplementedError`. And the function fails where an
# entry has nearly all attention. For each failing group the kit looks for the smallest inputs that
# still fail:


# %%
def printed_only(h, values, fast, norm):
    if fast or norm != 2:
        raise NotImplementedError("exact CAOTE with the L2 norm only")
    return printed(h, values)


report = check("eviction_error", printed_only)
print(checks.smallest_failure(report))

# %% [markdown]
# ## Repaired
#
# The error of the heaviest entry is computed from the output of the others (notebook 02).


# %%
def repaired(h, values, fast, norm):
    if fast or norm != 2:
        raise NotImplementedError("exact CAOTE with the L2 norm only")
    h = h.astype(np.float64)
    output = h @ values
    distance = np.linalg.norm(output[:, :, None] - values[:, None], axis=-1)
    heaviest = h == h.max(axis=-1, keepdims=True)
    others = np.where(heaviest, 0.0, h)
    mass = others.sum(axis=-1, keepdims=True)
    without = others @ values / np.where(mass > 0, mass, 1.0)
    apart = np.linalg.norm(without[:, :, None] - values[:, None], axis=-1)
    safe = np.where(mass > 0, h * apart, np.inf)
    return np.where(heaviest & (h > 0.5), safe, h / np.where(h < 1, 1 - h, 1) * distance)


report = check("eviction_error", repaired)
print("passed:", report.passed)
checks.vector_groups(report)

# %% [markdown]
# ## Classic bugs
#
# Choosing who stays looks trivial. Of equal scores the *later* entry stays, protected entries
# always do, and the result is ascending. Three plausible versions, and a right one:


# %%
def right(scores, safe, room):
    order = np.argsort(np.where(safe, np.inf, scores), axis=1, kind="stable")
    count = room + safe.sum(axis=1)[0]
    return np.sort(order[:, order.shape[1] - min(count, order.shape[1]) :], axis=1)


def unsorted(scores, safe, room):
    order = np.argsort(np.where(safe, np.inf, scores), axis=1, kind="stable")
    count = room + safe.sum(axis=1)[0]
    return order[:, order.shape[1] - min(count, order.shape[1]) :]


def earlier_stays(scores, safe, room):
    order = np.argsort(-np.where(safe, np.inf, scores), axis=1, kind="stable")
    return np.sort(order[:, : room + safe.sum(axis=1)[0]], axis=1)


def forgets_protection(scores, safe, room):
    return right(scores, np.zeros_like(safe), room + safe.sum(axis=1)[0])


versions = (right, unsorted, earlier_stays, forgets_protection)
for version in versions:
    failed = [group.group for group in check("keep_set", version).groups if group.first_failure]
    print(f"{version.__name__}:", *failed)

# %% [markdown]
# The kit itself is tested the same way: `tests/conformance` puts dozens of such bugs into right
# implementations and sees every one caught.
#
# ## Your kernel, in your language
#
# - **PyTorch, CuPy, JAX:** `check("h2o.score", my_function, arrays="torch", device="cuda")`.
# - **Many functions in a file:** `kvlab conformance run my_kernels.py`, with a table, `--json`
#   and exit code 1.
# - **CUDA, C++, Rust:** `kvlab conformance run --exec ./my_binary`; inputs and outputs are
#   safetensors files.
#
# The next cell tests the project's own Triton kernel, in Triton's interpreter (a GPU is not needed;
# PyTorch is):

# %%
import os
from importlib.util import find_spec

if find_spec("torch") and find_spec("triton"):
    os.environ["KVLAB_KERNELS"] = "interpret"
    from kvlab.fast.kernels.caote import eviction_errors

    def kernel(h, values, fast, norm):
        if norm != 2 or h.shape[1] != 1:  # it adds the query heads up
            raise NotImplementedError("one query head per KV head, the L2 norm")
        return eviction_errors(h[None], values[None], fast)[0, :, None]

    with np.errstate(over="ignore"):  # the interpreter computes with NumPy
        triton = check("eviction_error", kernel, arrays="torch")
    print("passed:", triton.passed)
    print(checks.vector_groups(triton))
else:
    print("PyTorch or Triton is not installed")

# %% [markdown]
# ## Exercises
#
# **1.** Write `tova_score(attention)`: TOVA's score of every entry, the attention of the block's
# last query, mean over *all* query heads of the layer; `attention` is `[G, rho, m, n]`, the result
# `[G, n]`.


# %% tags=["solution"] jupyter={"source_hidden": true}
def tova_score(attention, per_head):
    last = attention[:, :, -1].mean(axis=1)
    return last if per_head else np.broadcast_to(last.mean(axis=0), last.shape)


# %% tags=["check"]
report = check("tova.score", tova_score)
assert report.passed, checks.smallest_failure(report)

# %% [markdown]
# **2.** Write `received(queries, keys, positions, query_positions, softcap)`, the sum over the
# block's rows and all query heads of a KV head of the attention that every entry receives
# (`received_attention`). Mind the causal mask, $1/\sqrt{d}$, and the soft cap $c \tanh(x / c)$ on
# the logits, if there is one.


# %% tags=["solution"] jupyter={"source_hidden": true}
def received(queries, keys, positions, query_positions, softcap):
    logits = np.einsum("grmd,gnd->grmn", queries, keys) / np.sqrt(queries.shape[-1])
    if softcap is not None:
        logits = softcap * np.tanh(logits / softcap)
    hidden = positions[:, None, None, :] > query_positions[None, None, :, None]
    logits = np.where(hidden, -np.inf, logits)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)).sum(axis=(1, 2))


# %% tags=["check"]
report = check("received_attention", received)
assert report.passed, checks.smallest_failure(report)

# %% [markdown]
# **3.** Write `stored(x, bits, group)`: `x` `[rows, length]` after storage with `bits` bits per
# element, one scale and one zero point per `group` consecutive elements (the last group may be
# short). Any rounding within half a step is right (`quantize_dequantize`).


# %% tags=["solution"] jupyter={"source_hidden": true}
def stored(x, bits, group):
    result = np.empty_like(x)
    for first in range(0, x.shape[1], group):
        part = x[:, first : first + group]
        zero = part.min(axis=1, keepdims=True)
        step = (part.max(axis=1, keepdims=True) - zero) / (2**bits - 1)
        codes = np.round((part - zero) / np.where(step > 0, step, 1))
        result[:, first : first + group] = zero + step * codes
    return result


# %% tags=["check"]
report = check("quantize_dequantize", stored)
assert report.passed, checks.smallest_failure(report)
