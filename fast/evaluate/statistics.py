"""Intervals for shares and for paired differences."""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist

import numpy as np


def wilson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a share.

    Raises:
        ValueError: unless 0 ≤ successes ≤ trials and trials ≥ 1.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"successes = {successes} must be between 0 and trials = {trials} >= 1")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = successes / trials
    centre = share + z**2 / (2 * trials)
    spread = z * sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    scale = 1 + z**2 / trials
    return max(0.0, min(share, (centre - spread) / scale)), max(share, (centre + spread) / scale)


def paired_difference(
    first: Sequence[float], second: Sequence[float], level: float = 0.95, resamples: int = 10_000
) -> tuple[float, float, float]:
    """Return the mean of second − first and its percentile bootstrap interval over the pairs.

    Raises:
        ValueError: unless both are equally long and hold at least two values.
    """
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(f"{len(first)} and {len(second)} values must be two pairs at least")
    change = np.asarray(second) - np.asarray(first)
    chosen = np.random.default_rng(0).integers(len(change), size=(resamples, len(change)))
    low, high = np.quantile(change[chosen].mean(axis=1), [0.5 - level / 2, 0.5 + level / 2])
    return float(change.mean()), float(low), float(high)
