# %% [markdown]
# # 08 Test your own kernel
#
# **Question:** you have written a fast kernel, in any language. How do you know that it computes
# what the paper says, also in the cases that you did not think of?
#
# kvlab publishes *test vectors* (inputs, expected outputs, tolerances) for every method and for the
# building blocks that they share, grouped by what they stress: ties, entries with nearly all
# attention, groups that do not divide, 16-bit inputs. `check` runs a function on them.
#
# ## A kernel with a hidden fault
#
# The next cell has CAOTE's score as the paper prints it, in float32. A function names the inputs
# that it wants (`kvlab conformance show eviction_error` lists them). **Predict first:** where does
# it fail?

# %%
import numpy as np

from classroom import Exercises
from kvlab.reference.conformance import check
from study import checks

attempt = Exercises("08_test_your_kernel", globals())


def printed(h, values):
    """h: [G, k, n], retention of k query heads per KV head; values: [G, n, d]."""
    output = h @ values
    distance = np.linalg.norm(output[:, :, None] - values[:, None], axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return h / (1 - h) * distance


report = check("eviction_error", printed)
checks.vector_groups(report)

# %% [markdown]
# On most inputs it is right, so the fault survives a test with random numbers. Raising
# `NotImplementedError` for FastCAOTE and for other norms is not a fault, because the function does
# not offer them. But it fails where an entry has nearly all attention. For each failing group the
# kit looks for the smallest inputs that still fail. **Predict first:** how many entries do they
# have?


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
# The error of the heaviest entry is computed from the output of the others (notebook 02). **Predict
# first:** do all groups pass now?


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
# Of equal scores the *later* entry is kept, protected ones always are; the result is ascending.
# Here are a right version and three plausible ones. **Predict first:** which kinds of cases does
# each of the three fail?


# %%
def right(scores, safe, room):
    order = np.lexsort((scores, safe), axis=1)  # a score may be infinite, too
    count = room + safe.sum(axis=1)[0]
    return np.sort(order[:, order.shape[1] - min(count, order.shape[1]) :], axis=1)


def unsorted(scores, safe, room):
    order = np.lexsort((scores, safe), axis=1)
    count = room + safe.sum(axis=1)[0]
    return order[:, order.shape[1] - min(count, order.shape[1]) :]


def earlier_stays(scores, safe, room):
    order = np.lexsort((-scores, ~safe), axis=1)
    return np.sort(order[:, : room + safe.sum(axis=1)[0]], axis=1)


def forgets_protection(scores, safe, room):
    return right(scores, np.zeros_like(safe), room + safe.sum(axis=1)[0])


assert check("keep_set", right).passed
for version in (unsorted, earlier_stays, forgets_protection):
    failed = [group.group for group in check("keep_set", version).groups if group.first_failure]
    print(f"{version.__name__}:", *failed)

# %% [markdown]
# ## Your kernel, in your language
#
# - **PyTorch, CuPy, JAX:** `check("h2o.score", my_function, arrays="torch", device="cuda")`.
# - **Many functions in a file:** `kvlab conformance run my_kernels.py`, with a table, `--json`
#   and exit code 1.
# - **CUDA, C++, Rust:** `kvlab conformance run --exec ./my_binary`; inputs and outputs are
#   safetensors files.
#
# The next cell tests the project's own Triton kernel in Triton's interpreter, which needs PyTorch
# and no GPU. **Predict first:** does it pass where the printed form failed?

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
# **In three lines.** Random inputs miss the cases in which kernels fail. The vectors are grouped by
# such cases. One line runs them on a function, in any language.
#
# ## Exercise
#
# Notebook 11 has twelve more functions that the vectors check.
#
# **1.** Write `tova_score(attention, per_head)`, TOVA's score `[G, n]` of every entry: the
# attention `[G, rho, m, n]` of the block's last query, averaged over *all* query heads of the
# layer, or with `per_head` over the query heads of each KV head.


# %% tags=["exercise"]
def tova_score(attention, per_head): ...


attempt(1)
