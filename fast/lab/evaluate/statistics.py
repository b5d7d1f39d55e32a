"""Intervals for shares and differences, and tests of differences."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def decides(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    def percent(self, digits: int = 1, sign: str = "", to: str = "–") -> str:
        """Write a share, or a difference of shares, in percent."""
        mean, low, high = (f"{100 * x:{sign}.{digits}f}" for x in (self.mean, self.low, self.high))
        return f"{mean} ({low}{to}{high})"


def wilson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a share."""
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
    """Return the mean of second − first and its percentile bootstrap interval over the pairs."""
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(f"{len(first)} and {len(second)} values must be equally many, at least 2")
    change = np.asarray(second) - np.asarray(first)
    means = _drawn(len(change), resamples) @ change / len(change)
    low, high = np.quantile(means, [0.5 - level / 2, 0.5 + level / 2])
    return float(change.mean()), float(low), float(high)


@lru_cache(maxsize=2)
def _drawn(values: int, resamples: int) -> np.ndarray:
    """Return how often each resample draws each value, ``[resamples, values]``."""
    chosen = np.random.default_rng(0).integers(values, size=(resamples, values))
    places = chosen + values * np.arange(resamples)[:, None]
    counts = np.bincount(places.ravel(), minlength=places.size)
    return counts.reshape(places.shape).astype(float)


def paired_shares(
    only_first: int, only_second: int, trials: int, level: float = 0.95, resamples: int = 10_000
) -> tuple[float, float, float]:
    """Return the second share less the first, and its percentile bootstrap interval over the pairs.

    This is `paired_difference` of zeros and ones, from their counts: resampling trials draws how
    many of them fall to the first alone, the second alone, and both or neither.
    """
    if min(only_first, only_second) < 0 or not only_first + only_second <= trials >= 1:
        raise ValueError(
            f"only_first = {only_first} and only_second = {only_second} must not be negative, and "
            f"together at most trials = {trials} >= 1"
        )
    counts = np.array([only_first, only_second, trials - only_first - only_second])
    drawn = np.random.default_rng(0).multinomial(trials, counts / trials, size=resamples)
    differences = (drawn[:, 1] - drawn[:, 0]) / trials
    low, high = np.quantile(differences, [0.5 - level / 2, 0.5 + level / 2])
    return (only_second - only_first) / trials, float(low), float(high)


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Return a mean and its percentile bootstrap interval; it takes two values at least."""
    return paired_difference([0.0] * len(values), values, level)


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test, from problems that one method solved.

    If two methods are equally good, a problem that only one of them solved was solved by either
    method with equal probability (McNemar 1947; exact by the binomial distribution).
    """
    if min(only_first, only_second) < 0:
        raise ValueError(f"counts {only_first} and {only_second} must not be negative")
    from scipy.special import bdtr  # the binomial distribution, without the time of scipy.stats

    both_sides = 2 * bdtr(min(only_first, only_second), only_first + only_second, 0.5)
    return min(1.0, float(both_sides))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values of tests that are read together (Holm 1979).

    If all tests with an adjusted p-value below α are called significant, the probability that any
    of these calls is false is at most α, however the tests depend on each other.
    """
    if wrong := [p for p in p_values if not 0 <= p <= 1]:
        raise ValueError(f"p = {wrong[0]} must be between 0 and 1")
    order = np.argsort(p_values)
    counted = np.arange(len(order), 0, -1) * np.asarray(p_values)[order]
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, counted))
    return adjusted.tolist()
