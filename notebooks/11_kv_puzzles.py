# ---
# jupyter:
#   read: 2026-11-26 0daad735
# ---

# %% [markdown]
# # 11 KV puzzles
#
# **Question:** can you write every part of a KV-cache method yourself, in at most eight lines each?
#
# Twelve stubs are empty. `attempt(n)` runs what you wrote, on kvlab's published test vectors, and
# says what is wrong. Each wrong attempt prints one more hint. `reference/nano.py` has all of these
# parts: try without looking.
#
# Shapes: `G` KV heads, `rho` query heads per KV head, `m` queries of the newest block, `n` entries,
# `d` channels.

# %%
import numpy as np

from classroom import Exercises
from kvlab.reference.conformance import check
from study import puzzles

attempt = Exercises("11_kv_puzzles", globals())

# %% [markdown]
# **1. Attention with a mask.** Return the probabilities `[G, rho, m, n]` of queries
# `[G, rho, m, d]` over keys `[G, n, d]`. A query sees an entry if the entry's position `[G, n]` is
# not after the query's own position `[m]`. Logits are $q \cdot k / \sqrt{d}$.

# %%
puzzles.draw(1)


# %% tags=["exercise"]
def attention(queries, keys, positions, query_positions): ...


attempt(1)

# %% [markdown]
# **2. H2O's sum.** `received` `[G, n]` is the attention that each entry has received so far. Add
# what the newest block gives, `weights` `[G, rho, m, n]`: the sum over its queries, and the mean
# over the query heads.

# %%
puzzles.draw(2)


# %% tags=["exercise"]
def h2o(received, weights): ...


attempt(2)

# %% [markdown]
# **3. CAOTE's eviction error.** The weights `h` `[n]` add up to 1 and mix the values `[n, d]`. If
# one entry is evicted and the other weights are divided by their sum, by how much does the output
# move (L2 norm)? Return the answer for every entry, `[n]` (Eq. 8). No entry of the test vectors has
# nearly all the weight, because there the printed formula loses its digits (notebook 02).

# %%
puzzles.draw(3)


# %% tags=["exercise"]
def caote(h, values): ...


attempt(3)

# %% [markdown]
# **4. FastCAOTE.** The same with the plain mean of all values in the place of the output (Eq. 23).

# %%
puzzles.draw(4)


# %% tags=["exercise"]
def fast_caote(h, values): ...


attempt(4)

# %% [markdown]
# **5. LazyEviction's recurrence interval.** `stamp` `[G, n]` is the step at which an entry was last
# activated, `interval` `[G, n]` its longest time between two activations so far (MRI, Eq. 1). At
# `step` the entries that `active` `[G, n]` marks are activated. (A new entry has the stamp of the
# step before, and the interval 0.) Return the new `stamp` and `interval`.

# %%
puzzles.draw(5)


# %% tags=["exercise"]
def recur(stamp, interval, active, step): ...


attempt(5)

# %% [markdown]
# **6. A keep set with ties.** Return, in ascending order, the indices that one KV head keeps: all
# that `protected` `[n]` marks, and of the others the `room` ones with the highest `scores` `[n]`.
# Of two equal scores the *later* entry is kept, because it is newer. Scores may be infinite, and
# room may exceed the number of entries.

# %%
puzzles.draw(6)


# %% tags=["exercise"]
def keep_set(scores, protected, room): ...


attempt(6)

# %% [markdown]
# **7. Compaction.** Each KV head keeps entries of its own, `keep` `[G, kept]`. Select them in
# every array `[G, n, ...]`: keys, values, positions and all that a method remembers. Return a
# tuple.

# %%
puzzles.draw(7)


# %% tags=["exercise"]
def compact(keep, *arrays): ...


attempt(7)

# %% [markdown]
# **8. Rotation after eviction.** RoPE turns channel $c$ and channel $c + d/2$ of a query as a pair,
# by the angle position · `frequencies[c]`. The text has had `seen` tokens, numbered from 0, and the
# cache still holds those at the positions `kept`. Their keys were rotated by their positions in the
# text. Rotate the next token's query `[d]`, so that distances are right.

# %%
puzzles.draw(8)


# %% tags=["exercise"]
def rotate(query, kept, seen, frequencies): ...


attempt(8)

# %% [markdown]
# **9. A page table.** Memory is cut into pages of `page` places, `memory` `[pages, page, G, d]`.
# `table[p]` is the page that holds the positions p · page to (p + 1) · page − 1, or −1 if they were
# evicted. Return the positions `[n]` that are kept, ascending, and their vectors `[n, G, d]`.

# %%
puzzles.draw(9)


# %% tags=["exercise"]
def gather(memory, table): ...


attempt(9)

# %% [markdown]
# **10. A code of few bits.** Each row of `x` `[rows, group]` is stored as whole numbers from 0 to
# $2^{bits} - 1$, so that scale · code + zero is off by at most half a step. Return codes
# `[rows, group]`, scale and zero point `[rows, 1]`. A row may be constant.

# %%
puzzles.draw(10)


# %% tags=["exercise"]
def code(x, bits): ...


attempt(10)

# %% [markdown]
# **11. AhaKV's step gain.** Logits are multiplied by $\sqrt{2 \ln(i/k)}$ before the softmax, where
# `i` `[m]` counts the tokens that compete and `k` is the budget (Eq. 12). Where no more than `k`
# tokens compete, the factor is 1. Return the factors `[m]`.

# %%
puzzles.draw(11)


# %% tags=["exercise"]
def step_gain(i, k): ...


attempt(11)

# %% [markdown]
# **12. Protection.** Mark (`[G, n]`, true or false) the first `sinks` tokens of the *text* that are
# still there, and the newest `recent` entries of the *cache*. `positions` `[G, n]` ascend.

# %%
puzzles.draw(12)


# %% tags=["exercise"]
def protect(positions, sinks, recent): ...


attempt(12)

# %% [markdown]
# ## Beat CAOTE at 30 %
#
# Now write a score. The embedded model runs twenty programs of 40 to 44 steps with it, at a budget
# of 30 % of the entries. Your score replaces H2O's. H2O's protection, the newest half of the
# budget, also holds for CAOTE applied to H2O and for random eviction (`random:h2o`), so the rows
# differ in the score alone. A program is solved if every token is right.
#
# **Predict first:** how many of the twenty programs does random eviction solve, and how many H2O?
#
# Your score is given `received` and `positions` `[G, n]`, the newest block's `attention`
# `[G, rho, m, n]` and `values` `[G, n, d]`. It returns `[G, n]`, and the highest are kept. The stub
# is H2O's own score. (`race(score, rivals=())` runs your score alone, in a third of the time.)


# %%
from classroom import race


def score(received, attention, values, positions):
    return received


race(score)

# %% [markdown]
# Both solve none, and CAOTE applied to H2O a quarter. The first row equals H2O's until you change
# the stub. Brackets hold 95 % intervals, columns are as in notebook 01. Twenty programs show only
# large differences: 5 points more than CAOTE may be luck. With 200 problems `kvlab compare` makes
# the intervals three times narrower (notebook 07 gives your score a name for it). The lab at the
# end of the playground (`make playground`) asks for one JavaScript function, and shows where it
# loses.
#
# **In three lines.** A method needs few parts, and each is a few lines of NumPy. Mistakes hide in
# ties, masks and positions after eviction. A score counts only if it beats random eviction with the
# same protection.
