"""Intervals of means hold their level at few units too, and say so where there is none."""

from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from kvlab.fast.lab.evaluate.statistics import (
    LEVEL,
    Interval,
    holm,
    mcnemar,
    mean_interval,
    paired_difference,
    sign_flips,
    too_few,
)
from support.tolerances import DECIMALS

POPULATIONS = {
    "normal": (lambda rng, n: rng.normal(size=n), 0.0),
    "heavy tails (t, 3 degrees of freedom)": (lambda rng, n: rng.standard_t(3, size=n), 0.0),
    "skewed (exponential)": (lambda rng, n: rng.exponential(size=n), 1.0),
    "very skewed (lognormal)": (lambda rng, n: rng.lognormal(size=n), np.exp(0.5)),
    "differences of −1, 0 or 1": (lambda rng, n: rng.integers(-1, 2, size=n).astype(float), 0.0),
}
"""Samples by the name that the page of evaluation has, and their mean."""


def covered(kind, n, samples):
    """Return the share of intervals that hold the mean; equal values have none."""
    draw, mean = POPULATIONS[kind]
    rng = np.random.default_rng(n)
    found = [mean_interval(draw(rng, n)) for _ in range(samples)]
    found = [each for each in found if each.low < each.high]
    return sum(each.low <= mean <= each.high for each in found) / len(found)


def test_the_interval_of_a_mean_by_hand():
    """1, 2, 3, 6: s = √(14/3), m₃/s³ = 4.5/10.0811 = .446378 and t = 3.182446 for 3 degrees.

    The near end is t/√4 = 1.591223 s away; the far one 3/.446378·(1 − ∛(1 − .446378·(1.591223 +
    .446378/24))) = 2.316577 s.
    """
    found, s = mean_interval([1.0, 2.0, 3.0, 6.0]), sqrt(14 / 3)
    assert found.mean == 3.0
    assert (3 - found.low) / s == pytest.approx(1.591223, abs=DECIMALS)
    assert (found.high - 3) / s == pytest.approx(2.316577, abs=1e-5)
    turned = mean_interval([-1.0, -2.0, -3.0, -6.0])
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low), abs=DECIMALS)


def test_of_equal_values_there_is_no_interval_and_of_one_neither():
    for values in ([0.1] * 6, [0.0, 0.0]):
        found = mean_interval(values)
        assert found.low == found.mean == found.high == pytest.approx(values[0])
        assert not found.decides, "equal values have no spread"
        assert found.written(".1f") == f"{values[0]:.1f} (all equal)"
    assert Interval(0.2, 0.1, 0.3).decides and Interval(-0.2, -0.3, -0.1).decides
    with pytest.raises(ValueError, match="1 values must be at least 2: fewer have no interval"):
        mean_interval([1.0])
    with pytest.raises(ValueError, match="2 and 3 values must be equally many"):
        paired_difference([1.0, 2.0], [1.0, 2.0, 3.0])


def test_no_end_lies_where_no_mean_can():
    """Two shares, 0.9 and 1: the t interval would reach from 0.31 to 1.59."""
    assert mean_interval([0.9, 1.0], 0.0, 1.0).high == 1.0
    assert mean_interval([0.9, 1.0], 0.0, 1.0).low == pytest.approx(0.95 - 0.05 * 12.7062, abs=1e-5)
    found = paired_difference([0.9, 0.0], [0.0, 1.0], most=1.0)
    assert (found.low, found.high) == (-1.0, 1.0)


def test_a_design_without_power_is_told_by_hand():
    """2 · 2⁻⁴ = 0.125 of four units; 0.03125 of six is below 0.05 once, and not twice."""
    first = "the smallest p of 4 units is 0.125"
    assert too_few(4, 1) == f"{first}; 6 units are enough for one"
    assert too_few(4, 2) == f"{first}, which Holm multiplies by 2; 7 units are enough for one"
    assert too_few(6, 1) == too_few(7, 3) == too_few(4, 0) == ""
    assert "smallest p of 1 unit is 1;" in too_few(1, 1)
    assert too_few(300, 600).endswith("multiplies by 600; test fewer differences")
    assert too_few(300, 600, drawn=False) == "", "McNemar's test draws nothing"


@given(st.integers(1, 13), st.integers(1, 40))
def test_what_is_told_is_what_the_tests_can_reach(units, tests):
    """The best possible data: every difference has one sign, and one test of the family has it."""
    best = [sign_flips(np.arange(1.0, units + 1)), *[1.0] * (tests - 1)]
    assert (min(holm(best)) < 1 - LEVEL) == (too_few(units, tests) == "")
    assert mcnemar(units, 0) == pytest.approx(sign_flips(np.ones(units)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", POPULATIONS)
def test_the_page_says_how_often_intervals_hold_the_mean(kind):
    page = Path("docs/evaluate.md").read_text("utf-8").splitlines()
    (row,) = [line for line in page if line.startswith(f"| {kind} |")]
    units = (2, 4, 8, 12, 16, 30, 100, 300)
    printed = [float(cell) for cell in row.split("|")[2:-1]]
    for n, share in zip(units, printed, strict=True):
        assert round(100 * covered(kind, n, 20_000), 1) == share, n
