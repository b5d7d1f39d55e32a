"""Intervals for shares and differences, and tests of differences."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import exp, inf, sqrt
from statistics import NormalDist

import numpy as np

from kvlab.fast.lab.tables import counted

LEVEL = 0.95
"""Level of every interval; tests are called significant below 1 − LEVEL."""

ROUNDING = 1e-12
"""Relative spread below which values are equal but for rounding."""

DRAWS, Z = 10_000, NormalDist().inv_cdf(0.5 + LEVEL / 2)


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __neg__(self) -> "Interval":
        return Interval(-self.mean, -self.high, -self.low)

    @property
    def decides(self) -> bool:
        """Whether the interval excludes 0; one without width, of equal values, decides nothing."""
        return self.low < self.high and (self.low > 0 or self.high < 0)

    def written(self, form: str, to: str = "–", scale: float = 1.0) -> str:
        """Write mean and ends as numbers of a format such as ``.3g``, multiplied by ``scale``.

        Equal values have no spread to make an interval from: no ends are written then.
        """
        mean, low, high = [f"{scale * x:{form}}" for x in (self.mean, self.low, self.high)]
        ends = f"{low}{to}{high}" if self.low < self.high else "all equal"
        return re.sub(r"(?<!e)-", "−", f"{mean} ({ends})")


def wilson(outcomes: Sequence[bool]) -> Interval:
    """Return the share of yes and its Wilson score interval."""
    trials = len(outcomes)
    share = sum(outcomes) / trials
    centre = share + Z**2 / (2 * trials)
    spread = Z * sqrt(share * (1 - share) / trials + Z**2 / (4 * trials**2))
    scale = 1 + Z**2 / trials
    low, high = (centre - spread) / scale, (centre + spread) / scale
    return Interval(share, max(0.0, min(share, low)), min(1.0, max(share, high)))


def mean_interval(values: Sequence[float], least: float = -inf, most: float = inf) -> Interval:
    """Return a mean and its t interval, whose end on the long side of skewed values is further out.

    That end is the one of Hall's transformation (1992, "On the removal of skewness by
    transformation"), which the t statistic needs there. Of equal values both ends are the mean.

    Args:
        values: one for each unit.
        least: the smallest mean that there can be, so also the smallest end.
        most: the largest one.

    Raises:
        ValueError: if there are fewer than two values; one value has no interval.
    """
    from scipy.special import stdtrit  # the t distribution, without the time of scipy.stats

    x = np.asarray(values, dtype=float)
    n = len(x)
    if n < 2:
        raise ValueError(f"{n} values must be at least 2: fewer have no interval")
    mean = float(x.mean())
    spread = float(x.std(ddof=1))
    if spread <= ROUNDING * np.abs(x).max():
        return Interval(mean, mean, mean)
    near = far = float(stdtrit(n - 1, 0.5 + LEVEL / 2)) / sqrt(n)
    skew = float(((x - mean) ** 3).mean()) / spread**3
    if (size := abs(skew)) > 1e-6:  # below, rounding is larger than the difference
        far = 3 / size * (1 - float(np.cbrt(1 - size * (near + size / (6 * n)))))
    below, above = (near, far) if skew > 0 else (far, near)
    return Interval(mean, max(least, mean - below * spread), min(most, mean + above * spread))


def paired_difference(
    first: Sequence[float], second: Sequence[float], most: float = inf
) -> Interval:
    """Return `mean_interval` of second − first, whose absolute values are at most ``most``.

    Raises:
        ValueError: if they are not equally many, or fewer than two.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} values must be equally many")
    change = np.asarray(second) - np.asarray(first)
    return mean_interval(change.tolist(), -most, most)


def paired_shares(only_first: int, only_second: int, trials: int) -> Interval:
    """Return the second share less the first, and Tango's (1998) score interval of the difference.

    It holds the differences that a score test, McNemar's for no difference, does not reject.
    """
    estimate = (only_second - only_first) / trials

    def rejects(difference: float) -> bool:
        linear = (2 * trials + only_first - only_second) * difference - only_first - only_second
        rest = 8 * trials * only_first * difference * (1 - difference)
        first_alone = (sqrt(max(linear**2 + rest, 0.0)) - linear) / (4 * trials)
        variance = trials * (2 * first_alone + difference * (1 - difference))
        return (trials * (estimate - difference)) ** 2 > Z**2 * max(variance, 0.0)

    ends = (_border(rejects, estimate, end) for end in (-1.0, 1.0))
    return Interval(estimate, *ends)


def _border(rejects: Callable[[float], bool], inside: float, end: float) -> float:
    """Return where, between an inner point and an end, a test begins to reject."""
    if not rejects(end):
        return end
    for _ in range(60):
        middle = (inside + end) / 2
        inside, end = (inside, middle) if rejects(middle) else (middle, end)
    return inside


def perplexity_of(losses: Sequence[float], tokens: Sequence[int]) -> float:
    """Return the perplexity of texts, from each text's loss per token in nats, and its tokens."""
    return exp(float(np.average(losses, weights=tokens)))


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test (1947) from what one alone solved."""
    from scipy.special import bdtr  # the binomial distribution, without the time of scipy.stats

    both_sides = 2 * bdtr(min(only_first, only_second), only_first + only_second, 0.5)
    return min(1.0, float(both_sides))


def sign_flips(changes: Sequence[float]) -> float:
    """Return the two-sided p-value of the paired permutation test (Fisher 1935).

    It is the share of choices of signs whose mean is at least as far from 0; of more than
    `DRAWS` choices, so many are drawn.
    """
    change = np.asarray(changes, dtype=float)
    means = np.abs(_signs(len(change)) @ change)
    return float((means >= abs(change.sum()) * (1 - 1e-9)).mean())


@lru_cache(maxsize=2)
def _signs(values: int) -> np.ndarray:
    """Return choices of signs, ``[choices, values]``: all, or drawn ones after the observed one."""
    if 2**values <= DRAWS:
        return np.array([*product((1.0, -1.0), repeat=values)])
    signs = np.random.default_rng(0).choice((1.0, -1.0), size=(DRAWS, values))
    signs[0] = 1.0
    return signs


def too_few(units: int, tests: int, drawn: bool = True) -> str:
    """Say why no test of a family can be significant, before anything is run; empty if one can.

    The smallest p is that of differences of one sign on all units, and Holm multiplies it by the
    number of tests. ``drawn``: signs are flipped, at most `DRAWS` times.
    """

    smallest = [max(2.0 ** (1 - n), drawn / DRAWS) for n in range(max(64, units + 1))]
    enough_at = [n for n, p in enumerate(smallest) if tests * p < 1 - LEVEL]
    if units in enough_at:
        return ""
    holms = f", which Holm multiplies by {tests}" if tests > 1 else ""
    found = f"the smallest p of {counted(units, 'unit')} is {smallest[units]:.3g}{holms}"
    needed = [n for n in enough_at if n > units]
    enough = f"{needed[0]} units are enough for one" if needed else "test fewer differences"
    return f"{found}; {enough}"


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values, so that any is falsely below α with probability α at most (Holm 1979)."""
    order = np.argsort(p_values)
    counted = np.arange(len(order), 0, -1) * np.asarray(p_values)[order]
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, counted))
    return adjusted.tolist()
