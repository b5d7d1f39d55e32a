# ---
# jupyter:
#   read: 2026-11-26 4b758643
# ---

# %% [markdown]
# # 03 AhaKV: positional bias, entropy, and where the theory bends
#
# **Question:** H2O keeps the entries that have collected the most attention. Old entries had more
# time to collect. How unfair is that, and does AhaKV's remedy follow from its theory?
#
# [AhaKV](https://arxiv.org/abs/2506.03762) sums attention over the last rows only (a row is the
# attention of one query), sharpens it by a *step gain* on the logits, and multiplies it by a *value
# prior*, which favours entries with large values. Only a summary of the paper was available to us.
#
# ## The bias, in theory
#
# Suppose that no position is special: any order of a row's logits is equally likely. Row $i$
# spreads an attention of 1 over $i$ entries, so each can expect $1/i$. Entry $j$ is seen by the
# rows $j, \dots, n$, which give it $S_j$:
#
# $$E[S_j] = \sum_{i=j}^{n} \frac{1}{i}, \qquad
# E[S_{j+1}] - E[S_j] = -\frac{1}{j} \qquad \text{(Eq. 4)}$$
#
# The expected sum falls with every position. Over the last $r$ rows alone it is the same for all
# entries that all of these rows see (Eq. 5). The left picture has such exchangeable attention, the
# right one all heads of the embedded reasoner. **Predict first:** does real attention fall as
# smoothly?

# %%
import numpy as np

from classroom import Exercises
from kvlab.reference import observe_heads, workloads
from kvlab.reference.models import reasoner_directory
from study import bias

attempt = Exercises("03_ahakv", globals())
fair = [workloads.exchangeable(tokens=210, prompt=144, seed=seed) for seed in range(16)]
heads = observe_heads(reasoner_directory())
real = np.stack([head.attention() for head in heads])
bias.accumulated_attention(
    {"no position is special": np.stack([each.attention for each in fair]), "reasoner": real},
    recent=32,
)

# %% [markdown]
# In the real model accumulated attention falls, too. But neighbours differ by up to a factor of
# ten, because positions are not exchangeable there (claim AK-10).
#
# ## The bias, at work
#
# What do methods keep when nothing distinguishes the entries? The next cell prints the shares of
# the prompt's four quarters that are kept after 144 tokens, with a budget of 75, for H2O without
# and with its protected newest half (`recent=0` removes it), and for AhaKV with the sum over the
# last 32 rows and over all rows. **Predict first:** which method keeps all quarters alike?

# %%
from kvlab.reference import methods, replay

specs = ("h2o@recent=0", "h2o", "ahakv", "ahakv@accumulation=all")
fates = {spec: [] for spec in specs}
for each in fair:
    (found,) = replay(each.trace, [methods.get(spec, 75) for spec in specs])
    for spec, fate in zip(specs, found, strict=True):
        fates[spec].append(fate)
quarters = np.arange(144).reshape(4, 36)
{
    spec: [f"{np.mean([each.present(143)[:, part] for each in several]):.0%}" for part in quarters]
    for spec, several in fates.items()
}

# %% [markdown]
# Only AhaKV keeps the first three alike, and it protects the last.
#
# ## How flat is attention?
#
# If logits are Gaussian with variance $s^2$, the entropy of their softmax over $i$ tokens is about
#
# $$E[H] \approx \ln i - \frac{s^2}{2}$$
#
# so attention gets flatter as $i$ grows. At $s^2 = 2 \ln i$ the formula gives 0. In the picture,
# dots are simulations and lines the formula. **Predict first:** where do they part?

# %%
bias.entropy_phases((64, 512, 4096))

# %% [markdown]
# They part earlier, between 0.4 and 0.8 of $\ln i$, and later for longer texts. Beyond $2 \ln i$
# (red) a handful of tokens has all the weight.
#
# The paper multiplies logits by a gain so that $e^{E[H]}$, the effective number of tokens, becomes
# the budget $k$: $\sqrt{2 \ln (i/k)}$ on the usual logits (SG-softmax, Eq. 12), for the score
# alone. **Predict first:** does it reach $k$ for small and for large budgets?

# %%
from kvlab.reference.proofs.ahakv import mean_entropy, step_gain

for k in (16, 64, 256, 720):
    entropy, _ = mean_entropy(4096, step_gain(4096, k), draws=40)
    print(f"i = 4096, k = {k}: {np.exp(entropy):.0f} effective tokens")

# %% [markdown]
# The gain reaches $k$ for large budgets only. The reason, which the paper does not mention, is
# $k^2/i$, the inverse of $\sum \alpha^2$. Near 1, a few tokens carry most of the weight, and the
# formula fails.
#
# The table has what the theory claims, checked (places are those of the summary). **Predict
# first:** the paper's summary says that the sharper softmax and the size of the values mitigate the
# bias. Do they?

# %%
from study import checks

tags = ("AK-1", "AK-2", "AK-2c", "AK-4", "AK-9")
checks.verdicts("ahakv", tags)

# %% [markdown]
# Hardly (AK-2c): sharpening reduces the bias a little, and only where $k$ is a small part of the
# text; the value prior changes next to nothing. Only recent accumulation removes the bias. And
# while decoding, only B entries compete, however long the text is, so no choice of $i$ gives the
# promised k (AK-9).
#
# ## Does it help?
#
# The picture has the share of 200 problems of chained arithmetic that the reasoner solves under
# AhaKV, under AhaKV without each of its three parts, and under H2O
# (`docs/study/results/ablations`). AhaKV protects 16 entries and H2O the newest half of its budget,
# so each has its own control. **Predict first:** which part of AhaKV matters most?

# %%
from study import stored

base = "ahakv@recent=16"
parts = ("gain=none", "accumulation=all", "value_prior=none")
specs = (base, *(f"{base},{part}" for part in parts), "random:h2o@recent=16", "h2o", "random:h2o")
stored.solved(stored.stored_summary("ablations"), specs, ("70%", "85%"))

# %% [markdown]
# At 85 % the value prior matters most: without it 42 % are solved, not 64, and without the gain 47.
# Recent accumulation does not help. AhaKV beats its control, but random eviction with the newest
# half protected solves as many, and more than H2O. At 70 % AhaKV solves hardly anything. There,
# summing over *all* rows helps, because the facts stand first in these texts, and a bias towards
# early tokens keeps them.
#
# **In three lines.** Accumulated attention favours old entries, and only recent rows remove the
# bias. The step gain reaches its target for large budgets only. Whether a bias hurts depends on
# where a text has what it needs.
#
# ## Exercises
#
# **1.** Write `expected_score(n, j)`: the expected accumulated attention of entry `j` (from 1)
# after `n` rows, if the rows are exchangeable, as a `Fraction`.

# %% tags=["exercise"]
from fractions import Fraction


def expected_score(n, j): ...


attempt(1)

# %% [markdown]
# **2.** A usual remedy divides the sum by the number of rows that saw the entry, $n - j + 1$. Is
# the bias gone? Put `True` or `False` into `gone`, and the expected means for n = 4, position 1 to
# 4, into `means`.

# %% tags=["exercise"]
means = ...
gone = ...
attempt(2)
