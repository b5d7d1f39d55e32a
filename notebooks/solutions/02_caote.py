# %% 1
# - All weights are equal, so only the distance of a value from the output is left.
# - Put all values at one distance from their mean.
angles = 2 * np.pi * np.arange(6) / 6
far_values = np.stack([np.cos(angles), np.sin(angles)], axis=1)
# check
from kvlab.reference.methods import caote
even = caote.eviction_error(np.full(6, 1 / 6), far_values)
assert far_values.shape == (6, 2) and np.ptp(far_values, axis=0).max() > 0.1
assert np.ptp(even) < 1e-9 and even.min() > 0

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
stays = [i for i in range(12) if i not in (3, 7)]
remaining = weights[stays] / weights[stays].sum() @ vectors[stays]
assert np.isclose(joint(weights, vectors, (3, 7)), np.linalg.norm(weights @ vectors - remaining))
