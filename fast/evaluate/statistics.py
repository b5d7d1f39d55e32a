"""Intervals for shares."""

from math import sqrt
from statistics import NormalDist


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
