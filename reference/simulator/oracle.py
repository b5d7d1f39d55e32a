"""How much attention could be kept at best, if the future were known?"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from kvlab.reference.notation import Array
from kvlab.reference.simulator.replay import Layer, stretches
from kvlab.reference.simulator.trace import Trace


def mass_bounds(trace: Trace, budgets: Sequence[int]) -> Iterator[Float[Array, "budgets G t"]]:
    """Bound the share of the full cache's attention that any keep sets can hold, layer by layer.

    Whatever a policy does, a token finds at most B older entries and itself there, so its mass is
    at most that of itself and the B largest others. The bound asks more than any policy can do: it
    may choose anew for every token, and take back what has left. It holds for policies that never
    keep more than B entries after a step; a lagged one has to be compared at its largest size.

    Args:
        trace: what was recorded.
        budgets: entries per KV head.

    Raises:
        ValueError: if a budget is below 1.
    """
    if min(budgets, default=1) < 1:
        raise ValueError(f"budgets = {list(budgets)} must be at least 1")
    t = trace.queries.shape[3]
    for number in range(len(trace.queries)):
        layer = Layer.of(trace, number)
        bounds = np.ones((len(budgets), len(layer.keys), t))
        for first, last in stretches(0, t, None):
            attention = layer.full_attention(first, last).attention.mean(axis=1)
            own = np.arange(first, last)
            itself = attention[:, own - first, own].copy()
            attention[:, own - first, own] = 0.0
            largest_first = -np.sort(-attention, axis=-1)
            sums = np.cumsum(largest_first, axis=-1)
            for row, budget in enumerate(budgets):
                others = sums[..., min(budget, last) - 1]
                bounds[row, :, first:last] = np.minimum(1.0, itself + others)
        yield bounds
