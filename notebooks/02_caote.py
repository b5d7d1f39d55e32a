# %% [markdown]
# # 02 CAOTE: from the equation to the proof
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
# The weights are 0.10, 0.15 and 0.75. Entry 0 has a value of 10 where the others have 1. **Predict
# first:** without which entry does the output move least?

# %%
import numpy as np

from classroom import Exercises
from study import evictions

attempt = Exercises("02_caote", globals())
alpha = np.array([0.10, 0.15, 0.75])
values = np.array([[10.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
evictions.scores_by_entry(alpha, values)

# %% [markdown]
# The last column is found by brute force: the entry is taken away, the softmax runs again over the
# others, and the distance of the outputs is measured. By its weight entry 0 would be evicted, which
# moves the output by 0.9. Entry 1 moves it by 0.16. CAOTE's score *is* that column, without brute
# force.
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
# so the change of the output is known for every entry at once:
#
# $$c_j = \frac{\alpha_j}{1 - \alpha_j}\,\lVert X - v_j \rVert_2 \qquad \text{(Eq. 8)}$$
#
# ## The proof
#
# kvlab checks what papers claim by running it. Some rows are algebra for every size, the others
# hold on the domain that they state. `kvlab prove --paper caote` runs all of them.

# %%
from kvlab.reference.models import reasoner_directory
from study import checks

tags = ("CA-1", "CA-2", "CA-2b", "CA-7", "CA-7b", "CA-9", "CA-4a", "CA-4c", "CA-8a", "CA-8d")
checks.verdicts("caote", tags)

# %% [markdown]
# CA-8d does not hold as printed. FastCAOTE puts the plain mean of all values in the place of $X$:

# %%
print(checks.explanation("CA-8d"))

# %% [markdown]
# ## On real attention
#
# The picture has all entries that one query of the embedded reasoner sees in layer 3: the weight on
# the left, CAOTE's score on the right, both against the recomputed change of the output.

# %%
from kvlab.reference import observe_heads

heads = observe_heads(reasoner_directory())
head = next(head for head in heads if head.layer == 3)
query = 180
evictions.scores_and_errors(head.attention()[query, : query + 1], head.values[: query + 1])

# %% [markdown]
# The weight is no bad guess, because it varies over ten orders of magnitude and distances of values
# over one. Now every query from token 40 on, in all 16 heads, evicts a share of the entries that it
# sees, once by weight and once by CAOTE's score. **Predict first:** by how much does the output
# change less?

# %%
evictions.losses(heads, shares=(0, 0.3, 0.5, 0.7, 0.9))

# %% [markdown]
# Within a single step the gain is small: nine of ten evicted entries are the same, and the output
# changes about a tenth less. In some steps CAOTE does worse, because it adds up what single
# evictions cost, and several at once are not the sum of their parts (CA-4c).
#
# A model writes many tokens, and an evicted entry never comes back. The next table has the shares
# of 300 jump programs that the embedded model solves, as stored in `docs/study/results/study`.
# Random eviction under the same protection is the control: `random:h2o` of the methods that protect
# the newest half as H2O does, `random` of those that protect nothing:

# %%
from study import stored

specs = ("h2o", "caote:h2o", "fast_caote:h2o", "tova@per_head=true", "caote:tova")
bare = ("h2o@recent=0", "caote:h2o@recent=0")
controls = ("random:h2o", "random")
stored.results(stored.stored_summary("study"), (*controls, *specs, *bare), ("30%", "50%"))

# %% [markdown]
# Applied to H2O, which protects the newest half of its budget, CAOTE makes a large difference at 30
# % of the entries. At 50 % H2O solves most programs by itself. Without protected tokens
# (`recent=0`) nothing is solved with or without CAOTE, and neither is anything when CAOTE is
# applied to TOVA. Does CAOTE bring the attention output closer to the full cache's? The next cell
# measures two short programs:

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
# In both tables *error*, the mean distance of the attention output from full attention, is about
# the same for H2O with and without CAOTE. What differs is *KL*, how far the next token's
# distribution moves. So *where* the error is made counts more than its mean.
#
# ## Where arithmetic bends
#
# In float32 the printed formula fails when one entry has nearly all attention, which is common: the
# factor $1/(1-\alpha_j)$ explodes while $X - v_j$ vanishes. The same error computed from the output
# $X'_{-j}$ of the other entries is stable: $c_j = \alpha_j \lVert X'_{-j} - v_j \rVert$.

# %%
from kvlab.reference.proofs.caote import printed_float32, relative_error, stable_float32

for gap in (5, 10, 15, 30):
    wrong = [relative_error(form, gap) for form in (printed_float32, stable_float32)]
    print(f"one logit {gap} above the others: {wrong[0]:.0e} as printed, {wrong[1]:.0e} stable")

# %% [markdown]
# At most one entry can have a weight above one half, so the reference (`eviction_error` in
# `reference/methods/caote.py`) uses the stable form for that entry only.
#
# **In three lines.** CAOTE's score is the exact change of the output when one entry leaves. Within
# a step it gains little, but mistakes add up while a model writes. At 30 % of the entries it solves
# far more programs than H2O with the same protection. At 50 % both solve most.
#
# ## Exercises
#
# Puzzle 3 of notebook 11 has Eq. 8 itself.
#
# **1.** When do CAOTE and attention agree for certain? Find `far_values`, six values `[6, 2]`, not
# all equal, such that CAOTE ranks entries of equal weight (1/6 each) all alike.

# %% tags=["exercise"]
far_values = ...
attempt(1)

# %% [markdown]
# **2.** Two entries leave together. Write `joint(alpha, values, pair)`: the change of the output
# when both entries of `pair` leave, without running the softmax again. (Start from
# $X' = (X - \sum_{j \in E} \alpha_j v_j) / (1 - \sum_{j \in E} \alpha_j)$.)


# %% tags=["exercise"]
def joint(alpha, values, pair): ...


attempt(2)
