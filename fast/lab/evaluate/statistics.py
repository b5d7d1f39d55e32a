"""Intervals for shares and differences, and tests of differences."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import exp, sqrt
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

    def percent(self, digits: int = 1) -> str:
        """Write a share in percent."""
        return self.written(f".{digits}f", scale=100)

    def written(self, form: str, to: str = "–", scale: float = 1.0) -> str:
        """Write mean and ends as numbers of a format such as ``.3g``, multiplied by ``scale``."""
        mean, low, high = (f"{scale * x:{form}}" for x in (self.mean, self.low, self.high))
        return re.sub(r"(?<!e)-", "−", f"{mean} ({low}{to}{high})")


def wilson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a share."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = successes / trials
    centre = share + z**2 / (2 * trials)
    spread = z * sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2))
    scale = 1 + z**2 / trials
    low, high = (centre - spread) / scale, (centre + spread) / scale
    return max(0.0, min(share, low)), min(1.0, max(share, high))


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
    only_first: int, only_second: int, trials: int, level: float = 0.95
) -> tuple[float, float, float]:
    """Return the second share less the first, and Tango's (1998) score interval of the difference.

    The interval holds the differences that a score test, McNemar's for no difference, does not
    reject. It has a width also where no problem was solved, or none by one method alone.
    """
    z = NormalDist().inv_cdf(0.5 + level / 2)
    estimate = (only_second - only_first) / trials

    def rejects(difference: float) -> bool:
        linear = (2 * trials + only_first - only_second) * difference - only_first - only_second
        rest = 8 * trials * only_first * difference * (1 - difference)
        first_alone = (sqrt(max(linear**2 + rest, 0.0)) - linear) / (4 * trials)
        variance = trials * (2 * first_alone + difference * (1 - difference))
        return (trials * (estimate - difference)) ** 2 > z**2 * max(variance, 0.0)

    return estimate, _border(rejects, estimate, -1.0), _border(rejects, estimate, 1.0)


def _border(rejects: Callable[[float], bool], inside: float, end: float) -> float:
    """Return where, between an inner point and an end, a test begins to reject."""
    if not rejects(end):
        return end
    for _ in range(60):
        middle = (inside + end) / 2
        inside, end = (inside, middle) if rejects(middle) else (middle, end)
    return inside


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Return a mean and its percentile bootstrap interval; it takes two values at least."""
    return paired_difference([0.0] * len(values), values, level)


def perplexity_of(losses: Sequence[float], tokens: Sequence[int]) -> float:
    """Return the perplexity of texts, from each text's loss per token in nats, and its tokens."""
    return exp(float(np.average(losses, weights=tokens)))


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test, from problems that one method solved.

    If two methods are equally good, a problem that only one of them solved was solved by either
    method with equal probability (McNemar 1947; exact by the binomial distribution).
    """
    from scipy.special import bdtr  # the binomial distribution, without the time of scipy.stats

    both_sides = 2 * bdtr(min(only_first, only_second), only_first + only_second, 0.5)
    return min(1.0, float(both_sides))


def sign_flips(changes: Sequence[float], resamples: int = 10_000) -> float:
    """Return the two-sided p-value of the paired permutation test (Fisher 1935).

    If two methods are equally good, every difference could as well have the other sign: p is the
    share of choices of signs whose mean is at least as far from 0. Of more than ``resamples``
    choices, so many are drawn.
    """
    change = np.asarray(changes, dtype=float)
    means = np.abs(_signs(len(change), resamples) @ change)
    return float((means >= abs(change.sum()) * (1 - 1e-9)).mean())


@lru_cache(maxsize=2)
def _signs(values: int, resamples: int) -> np.ndarray:
    """Return choices of signs, ``[choices, values]``: all, or drawn ones after the observed one."""
    if 2**values <= resamples:
        return np.array([*product((1.0, -1.0), repeat=values)])
    signs = np.random.default_rng(0).choice((1.0, -1.0), size=(resamples, values))
    signs[0] = 1.0
    return signs


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values of tests that are read together (Holm 1979).

    If all tests with an adjusted p-value below α are called significant, the probability that any
    of these calls is false is at most α, however the tests depend on each other.
    """
    order = np.argsort(p_values)
    counted = np.arange(len(order), 0, -1) * np.asarray(p_values)[order]
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, counted))
    return adjusted.tolist()
