# %% 1
# - Each group has 32 bits of overhead. Count the groups of a vector first.
# - A short last group costs as much as a full one. Divide by the channels.
from math import ceil
def stored_bits(bits, group, channels):
    return bits + 32 * ceil(channels / group) / channels
# check
import numpy as np
from kvlab.reference import quantize
for bits, group, channels in ((4, 32, 32), (2, 64, 128), (8, 64, 96), (4, 64, 32)):
    held = quantize(np.random.default_rng(0).normal(size=(1, channels)), bits, group)
    measured = 8 * (held.codes.nbytes + held.scale.nbytes + held.zero.nbytes) / channels
    assert abs(stored_bits(bits, group, channels) - measured) < 1e-9

# %% 2
# - An element is an outlier if it is far outside the quartiles. Evenly spread elements have none.
# - The error at 4 bits grows with the range, outliers or not.
spiky = np.linspace(-0.1, 0.1, 32)
spiky[5] = 1.0
blind = np.linspace(-20, 20, 32)
# check
(spiky_score, blind_score), (spiky_error, blind_error) = (
    column[0] for column in precision.outliers_and_errors(np.stack([spiky, blind])[None], 4)
)
assert blind_score == 0 < spiky_score
assert blind_error > spiky_error
assert np.abs(spiky).max() <= 1 and blind.shape == (32,)
