# %% 1
# - All weights are equal, so only the distance of a value from the output is left.
# - Put all values at one distance from their mean.
angles = 2 * np.pi * np.arange(6) / 6
far_values = np.stack([np.cos(angles), np.sin(angles)], axis=1)
# check
from kvlab.reference.methods import caote
given = np.asarray(far_values, float)
assert given.shape == (6, 2), f"The values have the shape {given.shape}"
assert np.ptp(given, axis=0).max() > 0.1, "The values are all equal"
even = caote.eviction_error(np.full(6, 1 / 6), given)
told = f"CAOTE's scores reach from {even.min():.3g} to {even.max():.3g}"
assert np.ptp(even) < 1e-9 and even.min() > 0, f"{told}: some entries are missed more than others"

# %% 2
# - Take both entries away and let the other weights add up to 1 again.
# - Compare the new output with the old one. Both are sums of weight times value.
def joint(alpha, values, pair):
    gone = list(pair)
    output = alpha @ values
    left = (output - alpha[gone] @ values[gone]) / (1 - alpha[gone].sum())
    return np.linalg.norm(output - left)
# check
rng = np.random.default_rng(0)
weights, vectors = rng.dirichlet(np.ones(12)), rng.normal(size=(12, 4))
kept = [i for i in range(12) if i not in (3, 7)]
remaining = weights[kept] / weights[kept].sum() @ vectors[kept]
found, right = joint(weights, vectors, (3, 7)), np.linalg.norm(weights @ vectors - remaining)
size = "less" if found < right else "more"
told = f"For two of 12 random entries you get {found:.4g}, which is {size}"
assert np.isclose(found, right), f"{told} than the output moves when the softmax runs again"
