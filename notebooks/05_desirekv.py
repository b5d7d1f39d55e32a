# ---
# jupyter:
#   read: 2026-11-26 9a3d3a40
# ---

# %% [markdown]
# # 05 DesireKV: two axes, real bits, quadrants
#
# **Question:** between 16 bits and nothing there are 8, 4 and 2. Which tokens may be stored
# coarsely?
#
# DesireKV evicts unimportant tokens, and rounds important ones as the table says. Keys are
# *sensitive* if rounding hurts them. The prompt and the newest entries keep 16 bits. A token after
# one of low confidence is never evicted, because there the reasoning may turn.
#
# | quadrant | importance | sensitivity | what happens |
# |---|---|---|---|
# | Q1 | low | low | evicted |
# | Q2 | high | low | low bits (4) |
# | Q3 | high | high | high bits (8) |
# | Q4 | low | high | evicted |
#
# ## Sensitivity
#
# A vector is stored as whole numbers between its smallest and its largest element, in steps of
# $\Delta = (\max - \min)/(2^b - 1)$ with $b$ bits. One outlier stretches the range and makes all
# other elements coarser. The pictures have two keys of the embedded reasoner, without and with
# outliers, at 8, 4 and 2 bits. **Predict first:** at how many bits does the second key lose its
# shape?

# %%
from classroom import Exercises, reasoner
from kvlab.reference import methods
from kvlab.reference.generate import generate
from study import precision

attempt = Exercises("05_desirekv", globals())
model, prompt, trace = reasoner()
scores, errors = precision.outliers_and_errors(trace.keys[3], bits=4)
precision.stored_key(trace.keys[3, 0, scores[0].argmin()], (8, 4, 2))

# %%
precision.stored_key(trace.keys[3, 0, scores[0].argmax()], (8, 4, 2))

# %% [markdown]
# The *outlier score* (Eq. 6, 7) takes the elements that lie more than 1.5 interquartile ranges
# outside the quartiles, and averages their distance from the mean. Each dot is one key, and ρ is
# the rank correlation. **Predict first:** does a higher score mean a larger error?

# %%
precision.outliers_against_errors(trace.keys, bits=4)

# %% [markdown]
# It does, but many keys have no element that far out and score exactly 0, although their errors
# differ. The paper says that the score counts outliers, too; it measures only how large they are
# (claim DE-3).
#
# ## Two axes
#
# Importance is the mean attention of the last 32 queries, smoothed. The picture has importance and
# sensitivity as ranks, layer by layer, with the medians that divide the quadrants. **Predict
# first:** are important keys more sensitive?

# %%
from kvlab.reference import Layer, quadrants

judged = {f"layer {n}": quadrants(Layer.of(trace, n)) for n in range(trace.shape[0])}
precision.importance_over_sensitivity(judged)

# %% [markdown]
# They are not: the two axes have little to do with each other, here as in the paper, which prints
# R² = 0.018 (claim DE-7b). The thresholds are medians. **Predict first:** which quadrants are
# equally full?

# %%
for name, found in judged.items():
    print(name, found.counts)

# %% [markdown]
# Opposite quadrants are always equally full, because both axes are divided at their medians (claim
# DE-7).
#
# ## Real bits
#
# kvlab packs codes without gaps and counts what is stored: codes, and for every group a scale and a
# zero point of 16 bits each. KIVI and DDKS evict nothing and round: KIVI all but the newest, DDKS
# the less important to 2 bits. RPC evicts by importance and rounds nothing. The picture shows what
# they hold after the same problem, by position. The red line is the end of the prompt. **Predict
# first:** which of them hold every position?

# %%
specs = (
    "full",
    "kivi@key_bits=4,value_bits=4,residual=32",
    "rpc@interval=32,selector=8",
    "ddks@interval=32,selector=8,group=32",
    "desirekv@interval=32,selector=8,group=32",
)
caches, seen = {}, 0
for spec in specs:
    written = generate(model, methods.get(spec), prompt, len(trace.tokens) - len(prompt) + 1)
    caches[spec.partition("@")[0]] = written.session.caches
    seen = written.session.seen
precision.bits_by_position({name: layers[2] for name, layers in caches.items()}, seen, trace.prompt)

# %% [markdown]
# The full cache, KIVI and DDKS. Bits are per number of the full cache, so what is evicted counts 0.
# **Predict first:** how many does `kivi` take, whose codes have 4?

# %%
for name, layers in caches.items():
    codes, whole = (sum(getattr(c, kind) for c in layers) for kind in ("payload_bytes", "nbytes"))
    bits = 8 * whole / (2 * trace.keys.size)  # of what the full cache has seen
    print(f"{name}: {codes:,} bytes of codes, {whole - codes:,} of scales: {bits:.2f} bits each")

# %% [markdown]
# Scales and zero points, which papers often leave out, have 32 bits per group of 32 channels: a
# full bit per element. KIVI's newest entries have 16 bits.
#
# ## What it costs
#
# The picture has methods whose own rule decides their memory, on 300 jump programs (stored in
# `docs/study/results/study`). Names with `random:` are controls: a draw decides what is evicted, or
# rounded. **Predict
# first:** which methods solve as much as the full cache?

# %%
from study import stored

controls = [f"random:{spec}" for spec in specs[2:]]
stored.solved(stored.stored_summary("study"), (*specs, *controls))

# %% [markdown]
# None; KIVI solves 84 %, the full cache 98 %. DesireKV solves nothing, and neither do RPC and DDKS.
# Is DesireKV's eviction to blame, or its rounding? `importance_quantile=0` evicts nothing, and 16
# bits everywhere round nothing. The next cell measures four short programs. **Predict first:**
# which of the two saves the programs?

# %%
from classroom import try_methods

desirekv = "desirekv@interval=32,selector=8,group=32"
rounds_only, evicts_only = "importance_quantile=0", "low_bits=16,high_bits=16"
try_methods([desirekv, f"{desirekv},{rounds_only}", f"{desirekv},{evicts_only}"])

# %% [markdown]
# In these four programs DesireKV's bits are harmless. Evicting half of every window fails, because
# a value that will be needed later seems unimportant now.
#
# **In three lines.** Importance and sensitivity to rounding are nearly independent here. Bits have
# to be counted with their scales. In these programs DesireKV fails because it evicts, not because
# it rounds.
#
# ## Exercises
#
# **1.** Write `stored_bits(bits, group, channels)`: bits per element with scales and zero points of
# 16 bits per group; a last group may be short. Check it against what is really stored.

# %% tags=["exercise"]
from math import ceil


def stored_bits(bits, group, channels): ...


attempt(1)

# %% [markdown]
# **2.** Build `blind`, a key of 32 channels that scores 0 (no outlier) and yet loses more at 4 bits
# (root mean square) than `spiky`, a key of small values with one outlier.

# %% tags=["exercise"]
import numpy as np

spiky = ...
blind = ...
attempt(2)
