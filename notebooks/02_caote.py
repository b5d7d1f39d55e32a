# %% [markdown]
# # 02 CAOTE: from the equation to the proof to the kernel
#
# **Question:** if one entry has to leave, which one is missed least, and can one know without
# trying all of them?
#
# Attention mixes values: the output is $X = \sum_i \alpha_i v_i$ with weights that add up to 1. An
# entry with a small weight looks dispensable. But an entry with a small weight and a value far from
# all others may be missed more than one with a larger weight and an ordinary value.
#
# ## Three entries
#
# The weights are 0.10, 0.15 and 0.75. Entry 0 has the smallest weight, and a value of 10 where the
# others have 1.

# %%
import sys

sys.path += ["docs", "../docs"]  # `study` draws and tabulates; it is no part of the package

import numpy as np

from study import evictions

alpha = np.array([0.10, 0.15, 0.75])
values = np.array([[10.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
evictions.scores_by_entry(alpha, values)

# %% [markdown]
# The last column is found by brute force: take the entry away, let the softmax run again over the
# others, and measure how far the output moves. Attention would evict entry 0, which moves the
# output by 0.9. Entry 1 moves it by 0.16 only. CAOTE's score *is* that column, without brute force.
#
# ## The equation
#
# When entry $j$ leaves, the softmax renormalises, so every other weight grows to
# $\alpha_i / (1 - \alpha_j)$ (Theorem 3.1). Put that into the sum:
#
# $$X' = \frac{X - \alpha_j v_j}{1 - \alpha_j}
# \quad\Rightarrow\quad
# X - X' = \frac{\alpha_j}{1 - \alpha_j}\,(v_j - X)$$
#
# so the change of the output is known for every entry at once from things that are there anyway:
#
# $$c_j = \frac{\alpha_j}{1 - \alpha_j}\,\lVert X - v_j \rVert_2 \qquad \text{(Eq. 8)}$$
#
# ## The proof
#
# kvlab checks what papers claim by running it. Some rows are algebra for every size; the others are
# checked over the domain that they state. `kvlab prove --paper caote` runs all of them.

# %%
from kvlab.reference.models import reasoner_directory
from study import checks

tags = ("CA-1", "CA-2", "CA-2b", "CA-7", "CA-7b", "CA-9", "CA-4a", "CA-4c", "CA-8a", "CA-8d")
checks.verdicts("caote", tags)

# %% [markdown]
# One of these does not hold as printed: CA-8d. It is about FastCAOTE, which puts the plain mean of
# all values in the place of $X$:

# %%
print(checks.explanation("CA-8d"))

# %% [markdown]
# ## On real attention
#
# The picture has one query of the embedded reasoner in layer 3, with all entries that it sees. The
# left side shows the weight, the right side CAOTE's score, both against the recomputed change of
# the output.

# %%
from kvlab.reference import observe_heads

heads = observe_heads(reasoner_directory())
head = next(head for head in heads if head.layer == 3)
query = 180
evictions.scores_and_errors(head.attention()[query, : query + 1], head.values[: query + 1])

# %% [markdown]
# The weight is not a bad guess: it varies over ten orders of magnitude, distances of values over
# one. So how much does CAOTE gain? Every query from token 40 on, in all 16 heads, drops a share of
# the entries that it sees, once by weight and once by CAOTE's score.

# %%
evictions.losses(heads, shares=(0, 0.3, 0.5, 0.7, 0.9))

# %% [markdown]
# Within a single step the gain is small: nine of ten victims are the same, and the output changes
# about a tenth less. In some steps CAOTE does worse, because it adds up what single evictions cost,
# and several at once are not the sum of their parts (CA-4c).
#
# A model writes many tokens, and an entry that was evicted by mistake stays away for ever. So let
# the model write. The shares of solved problems are results that lie in the package (jump programs;
# *Reproduce* says how they were measured):

# %%
from study import stored

specs = ("h2o", "caote:h2o", "fast_caote:h2o", "tova@per_head=true", "caote:tova")
bare = ("h2o@recent=0", "caote:h2o@recent=0")
stored.results(stored.stored_summary("study"), ("random", *specs, *bare), ("30%", "50%"))

# %% [markdown]
# Around H2O that protects its newest half, as its authors have it, CAOTE makes a large difference
# at 30 % of the memory; at 50 % H2O solves most programs by itself. Without protected tokens
# (`recent=0`), of which CAOTE's paper mentions none, nothing is solved with or without CAOTE, and
# nothing is solved around TOVA either. Does CAOTE bring the attention output closer to the full
# cache's? The next cell measures two short programs:

# %%
from kvlab.fast.lab.sweep.compare import compare
from kvlab.fast.lab.sweep.plan import Sweep

stored.results(
    compare(
        Sweep(
            specs,
            ("50%",),
            problems=2,
            measured=2,
            to_first_error=True,
            tasks=("jumps@fewest=18,most=22",),
            backend="reference",
        )
    ).summary
)

# %% [markdown]
# Look at *error*, the mean distance of the attention output from full attention: for H2O with and
# without CAOTE it is about the same. What differs is *KL*, how far the next token's distribution
# moves. So the mean error, which CAOTE minimises greedily, is not what decides: *where* the error
# is made counts.

# %% [markdown]
# ## Where arithmetic bends
#
# In float32 the printed formula fails when one entry has nearly all attention, which is common: the
# factor $1/(1-\alpha_j)$ explodes while $X - v_j$ vanishes. At a difference of 30 in the logits the
# result is not a number. The same error computed from the output $X'_{-j}$ of the other entries is
# safe: $c_j = \alpha_j \lVert X'_{-j} - v_j \rVert$.

# %%
from kvlab.reference.proofs.caote import printed_float32, relative_error, stable_float32

for gap in (5, 10, 15, 30):
    wrong = [relative_error(form, gap) for form in (printed_float32, stable_float32)]
    print(f"one logit {gap} above the others: {wrong[0]:.0e} as printed, {wrong[1]:.0e} safe")

# %% [markdown]
# At most one entry can have a weight above one half, so the safe form is needed for one entry only.
# That is what the reference does:

# %%
import inspect

from kvlab.reference.methods import caote

print(inspect.getsource(caote.eviction_error))

# %% [markdown]
# ## The kernel
#
# The cost of CAOTE beyond attention is one more reading of all values. The Triton kernel in
# `fast/kernels/caote.py` reads them once for all query heads of a KV head, and takes $X$
# from attention. The same function computes in PyTorch, too. The next cell compares both with the
# reference on one layer of the reasoner; Triton runs in its interpreter, which needs no GPU. This
# cell needs `pip install -e '.[fast]'`.

# %%
import os
from importlib.util import find_spec

if find_spec("torch") and find_spec("triton"):
    os.environ["KVLAB_KERNELS"] = "interpret"
    import torch

    from kvlab.fast.kernels.caote import eviction_errors

    own = [head for head in heads if head.layer == 3 and head.kv_head == 0]
    h = np.stack([head.attention()[query, : query + 1] for head in own])
    seen = own[0].values[: query + 1]
    exact = np.linalg.norm(caote.eviction_error(h, seen[None]), axis=0)
    retention = torch.tensor(h, dtype=torch.float32)[None, None]
    entries = torch.tensor(seen, dtype=torch.float32)[None, None]
    triton = eviction_errors(retention, entries)[0, 0].numpy()
    os.environ["KVLAB_KERNELS"] = "torch"
    plain = eviction_errors(retention, entries)[0, 0].numpy()
    for name, found in (("Triton", triton), ("PyTorch", plain)):
        print(f"{name:8} largest error, relative: {abs(found - exact).max() / exact.max():.1e}")
    print("evicts entry", exact.argmin(), triton.argmin(), plain.argmin())
else:
    print("PyTorch or Triton is not installed")

# %% [markdown]
# ## Exercises
#
# **1.** Write `caote_score(alpha, values)`, Eq. 8 as printed, in one line of NumPy; for weights
# `alpha` `[n]` and values `[n, d]`.


# %% tags=["solution"] jupyter={"source_hidden": true}
def caote_score(alpha, values):
    return alpha / (1 - alpha) * np.linalg.norm(alpha @ values - values, axis=1)


# %% tags=["check"]
rng = np.random.default_rng(0)
weights = rng.dirichlet(np.ones(12))
vectors = rng.normal(size=(12, 4))
recomputed = evictions.recomputed_errors(weights, vectors)
assert np.allclose(caote_score(weights, vectors), recomputed)

# %% [markdown]
# **2.** When do CAOTE and attention agree for certain? Find `far_values`, six values `[6, 2]`, not
# all equal, such that CAOTE ranks entries of equal weight (1/6 each) all alike. *Hint:* all must
# lie equally far from their mean.

# %% tags=["solution"] jupyter={"source_hidden": true}
angles = 2 * np.pi * np.arange(6) / 6
far_values = np.stack([np.cos(angles), np.sin(angles)], axis=1)

# %% tags=["check"]
even = caote.eviction_error(np.full(6, 1 / 6), far_values)
assert far_values.shape == (6, 2) and np.ptp(far_values, axis=0).max() > 0.1
assert np.ptp(even) < 1e-9 and even.min() > 0

# %% [markdown]
# **3.** Two entries leave together. Write `joint(alpha, values, pair)`: the change of the output
# when both entries of `pair` leave, without running the softmax again. (Start from
# $X' = (X - \sum_{j \in E} \alpha_j v_j) / (1 - \sum_{j \in E} \alpha_j)$.)


# %% tags=["solution"] jupyter={"source_hidden": true}
def joint(alpha, values, pair):
    gone = list(pair)
    output = alpha @ values
    left = (output - alpha[gone] @ values[gone]) / (1 - alpha[gone].sum())
    return np.linalg.norm(output - left)


# %% tags=["check"]
stays = [i for i in range(12) if i not in (3, 7)]
remaining = weights[stays] / weights[stays].sum() @ vectors[stays]
assert np.isclose(joint(weights, vectors, (3, 7)), np.linalg.norm(weights @ vectors - remaining))
