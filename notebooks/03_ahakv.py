# %% [markdown]
# # 03 AhaKV: positional bias, entropy, and where the theory bends
#
# **Question:** H2O keeps the entries that have collected the most attention. Old entries had more
# time to collect. How unfair is that, and does AhaKV's remedy follow from its theory?
#
# ## The bias, in theory
#
# Suppose that no position is special: the logits of a row are exchangeable. Row $i$ spreads an
# attention of 1 over $i$ entries, so each can expect $1/i$. Entry $j$ is seen by the rows
# $j, \dots, n$:
#
# $$E[S_j] = \sum_{i=j}^{n} \frac{1}{i} = H_n - H_{j-1}, \qquad
# E[S_{j+1}] - E[S_j] = -\frac{1}{j} \qquad \text{(Eq. 4)}$$
#
# The expected sum falls with every position, although no entry is more important than another. Over
# the last $r$ rows alone the expected sum is the same for all entries that all of these rows see
# (Eq. 5). The left picture has exchangeable attention, the right one all heads of the embedded
# reasoner:

# %%
import sys

sys.path += ["docs", "../docs"]  # `study` draws and tabulates; it is no part of the package

import numpy as np

from kvlab.reference import observe_heads, workloads
from kvlab.reference.models import reasoner_directory
from study import bias

fair = [workloads.exchangeable(tokens=210, prompt=144, seed=seed) for seed in range(16)]
heads = observe_heads(reasoner_directory())
real = np.stack([head.attention() for head in heads])
bias.accumulated_attention(
    {"no position is special": np.stack([each.attention for each in fair]), "reasoner": real},
    recent=32,
)

# %% [markdown]
# Eq. 4 describes the exchangeable attention exactly. In the real model accumulated attention falls,
# too, but single entries differ by far more than the trend, and heads as well. Positions are not
# exchangeable there:

# %%
from study import checks

print(checks.explanation("AK-10"))

# %% [markdown]
# ## The bias, at work
#
# What do methods keep when nothing distinguishes the entries? H2O keeps the beginning, most clearly
# without its protected recent half (`recent=0`), when the score alone decides. AhaKV, which sums
# over the last 32 rows, keeps all stretches alike.

# %%
from kvlab.reference import methods, replay

specs = ("h2o@recent=0", "h2o", "ahakv", "ahakv@accumulation=all")
fates = {spec: [] for spec in specs}
for each in fair:
    (found,) = replay(each.trace, [methods.get(spec, 75) for spec in specs])
    for spec, fate in zip(specs, found, strict=True):
        fates[spec].append(fate)
bias.kept_positions(fates, token=143)

# %% [markdown]
# ## How flat is attention?
#
# AhaKV's second part is about entropy. If logits are Gaussian with variance $s^2$, the entropy of
# their softmax over $i$ tokens is about
#
# $$E[H] \approx \ln i - \frac{s^2}{2}$$
#
# so attention gets flatter as $i$ grows. Statistical physics knows this model (*random energy
# model*): the formula holds until $s^2 = 2 \ln i$; beyond that value a handful of tokens has all
# the weight. Dots are simulations, lines the formula.

# %%
bias.entropy_phases((64, 512, 4096))

# %% [markdown]
# The paper multiplies logits by a gain so that $e^{E[H]}$ becomes the budget $k$:
# $\sqrt{2 \ln (i/k)}$ on the usual logits (SG-softmax, Eq. 12). It is used for the score alone; the
# model's own attention stays as it is. Does it reach $k$?

# %%
from kvlab.reference.proofs.ahakv import mean_entropy, step_gain

for k in (16, 64, 256, 720):
    entropy, _ = mean_entropy(4096, step_gain(4096, k), draws=40)
    print(f"i = 4096, k = {k}: {np.exp(entropy):.0f} effective tokens")

# %% [markdown]
# The gain reaches $k$ for large budgets. For small budgets it does not, and the reason is a
# quantity that the paper does not mention: $k^2/i$, the number of tokens that share the *collision*
# probability. Where $k^2/i$ is large the estimate is good; where it comes near 1 there are not
# enough samples to carry the weight. At $i = 4096$ and $k = 16$ about 48 tokens are effective
# instead of 16.
#
# The table has what the theory claims, checked:

# %%
tags = ("AK-1", "AK-1b", "AK-2", "AK-2c", "AK-3", "AK-3c", "AK-4", "AK-4b", "AK-5", "AK-5b")
checks.verdicts("ahakv", (*tags, "AK-8", "AK-9"))

# %% [markdown]
# Two claims are worth reading twice. AK-2c: neither sharpening nor the value prior does anything
# against the *expected* bias; recent accumulation alone removes it. AK-9: while decoding only B
# entries compete, whatever position the text has reached, and neither reading of $i$ gives the
# promised k.
#
# ## Are real logits Gaussian?
#
# If logits were Gaussian with variance 1, the entropy would be near $\ln i - \tfrac{1}{2}$. The
# heads of the reasoner are far below: their attention is concentrated already, and needs no
# sharpening.

# %%
from scipy.special import entr

for i in (50, 100, 200):
    median = np.median(entr(real[:, i - 1]).sum(axis=-1))
    print(f"i = {i}: Gaussian {np.log(i) - 0.5:.2f} nats, median of the heads {median:.2f}")

# %% [markdown]
# ## Does it help?
#
# The table has AhaKV without each of its three parts (the paper's ablations), beside H2O, on 200
# problems of chained arithmetic. The results lie in the package, and *Reproduce* says how they were
# measured.

# %%
from study import stored

base = "ahakv@recent=16"
parts = ("gain=none", "accumulation=all", "value_prior=none")
specs = (base, *(f"{base},{part}" for part in parts), "h2o")
stored.results(stored.stored_summary("ablations"), specs, ("70%", "85%"))

# %% [markdown]
# At 85 % AhaKV is better than H2O, and gain and value prior help. At 70 % it solves next to
# nothing, and summing over *all* rows, bias and all, is what helps: in a text whose facts stand
# first and are needed until the end, a bias towards early tokens is useful. That is no argument
# against the theory, but one against judging a score without asking what the text needs.
#
# ## Exercises
#
# **1.** Write `expected_score(n, j)`: the expected accumulated attention of entry `j` (from 1)
# after `n` rows, if the rows are exchangeable, as a `Fraction`.

# %% tags=["solution"] jupyter={"source_hidden": true}
from fractions import Fraction


def expected_score(n, j):
    return sum((Fraction(1, i) for i in range(j, n + 1)), Fraction(0))


# %% tags=["check"]
assert [expected_score(4, j) for j in (1, 2, 3, 4)] == [
    Fraction(25, 12),
    Fraction(13, 12),
    Fraction(7, 12),
    Fraction(1, 4),
]

# %% [markdown]
# **2.** A usual remedy divides the sum by the number of rows that saw the entry, $n - j + 1$. Is
# the bias gone? Put `True` or `False` into `gone`, and the expected means for n = 4, position 1 to
# 4, into `means`.

# %% tags=["solution"] jupyter={"source_hidden": true}
means = [expected_score(4, j) / (4 - j + 1) for j in range(1, 5)]
gone = len(set(means)) == 1

# %% tags=["check"]
assert means == [Fraction(25, 48), Fraction(13, 36), Fraction(7, 24), Fraction(1, 4)]
assert gone is False

# %% [markdown]
# **3.** Where does SG-softmax *flatten* attention instead of sharpening it? Write `ratio`: the
# smallest $i/k$ from which on the gain $\sqrt{2 \ln(i/k)}$ is at least 1.

# %% tags=["solution"] jupyter={"source_hidden": true}
ratio = np.sqrt(np.e)

# %% tags=["check"]
assert abs(np.sqrt(2 * np.log(ratio)) - 1) < 1e-9
