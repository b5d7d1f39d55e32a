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
    stored = quantize(np.random.default_rng(0).normal(size=(1, channels)), bits, group)
    measured = 8 * (stored.codes.nbytes + stored.scale.nbytes + stored.zero.nbytes) / channels
    found = stored_bits(bits, group, channels)
    told = f"{channels} channels at {bits} bits in groups of {group}: you get {found} bits"
    size = "fewer" if found < measured else "more"
    assert abs(found - measured) < 1e-9, f"{told} per element, {size} than are stored"

# %% 2
# - An element is an outlier if it is far outside the quartiles. Evenly spread elements have none.
# - The error at 4 bits grows with the range, outliers or not.
spiky = np.linspace(-0.1, 0.1, 32)
spiky[5] = 1.0
blind = np.linspace(-20, 20, 32)
# check
for name, given in (("spiky", spiky), ("blind", blind)):
    assert np.shape(given) == (32,), f"{name} has the shape {np.shape(given)}"
(spiky_score, blind_score), (spiky_error, blind_error) = (
    column[0] for column in precision.outliers_and_errors(np.stack([spiky, blind])[None], 4)
)
largest, told = np.abs(spiky).max(), f"blind loses {blind_error:.3g} at 4 bits"
assert largest <= 1, f"An element of spiky has a size of {largest:.3g}; let none exceed 1"
assert spiky_score > 0, "spiky scores 0: it has no outlier"
assert blind_score == 0, f"blind scores {blind_score:.3g}: it has an outlier"
assert blind_error > spiky_error, f"{told}, not more than spiky, which loses {spiky_error:.3g}"
