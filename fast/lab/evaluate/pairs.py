"""Paired tests: two methods on the same problems, windows or needles."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from statistics import fmean
from typing import Any

from kvlab.fast.lab.evaluate.statistics import (
    LEVEL,
    T_INTERVAL,
    Interval,
    holm,
    mcnemar,
    paired_difference,
    paired_shares,
    sign_flips,
    too_few,
)
from kvlab.fast.lab.points import ORACLE, MeasuredRow, never
from kvlab.fast.lab.tables import Column

Values = Sequence[bool] | Sequence[float]
"""A measure on every unit (problem, window, haystack), in the same order for all methods."""


@dataclass(frozen=True)
class Measure:
    """What methods are compared by."""

    name: str
    values: Callable[[Any], Values]
    """Returns the values of a row; none if it was not measured."""
    sign: int = -1
    """1 where more is better, −1 where less is."""
    most: float = inf
    """The largest value that there can be; the smallest is 0."""
    after: str = "after_eviction"
    """Name of the row's field that says how often it was measured after an eviction."""

    def goodness(self, row: MeasuredRow) -> float:
        """Return the mean of a row, the better the higher."""
        return self.sign * fmean(self.values(row))

    def counts(self, row: MeasuredRow) -> bool:
        """Say whether a row measures anything: until its first eviction it is the full cache's."""
        return not never(getattr(row, self.after))


@dataclass(frozen=True, kw_only=True)
class Test:
    """Two methods on the same units."""

    measure: str
    first: str
    second: str
    budget: int | str | None
    """Budget of the methods that take one."""
    units: int
    first_mean: float
    """Mean over the units; of yes and no, the share of yes."""
    second_mean: float
    only_first: int | None = None
    """Units where only the first has a yes; None if the measure is no yes or no."""
    only_second: int | None = None
    difference: Interval
    """First mean less the second, with Tango's score interval or the t interval."""
    p: float
    """Two-sided p-value of McNemar's exact test, or of the one that flips signs."""
    p_adjusted: float
    """The p-value after Holm's correction over all tests of the measure."""
    verdict: str


def check_pairs(pairs: Sequence[tuple[str, ...]], methods: Sequence[str]) -> None:
    """Raise ValueError if an entry does not name two methods that are among those that run."""
    for pair in pairs:
        if len(set(pair)) != 2 or len(pair) != 2:
            raise ValueError(f"an entry of pairs = {list(pair)} must name two methods")
        if unknown := [spec for spec in pair if spec not in methods]:
            raise ValueError(f"pairs names {unknown[0]!r}, which is not among the methods")


def paired_tests(
    rows: Sequence[MeasuredRow], names: Sequence[tuple[str, str]], measure: Measure
) -> list[Test]:
    """Test pairs at every budget that both have, unless one measures nothing; Holm adjusts all."""
    ran = [
        row
        for row in rows
        if row.refusal is None and len(measure.values(row)) > 1 and measure.counts(row)
    ]
    pairs = [
        (one, other)
        for first, second in names
        for one in ran
        for other in ran
        if (one.method, other.method) == (first, second)
        if one.budget == other.budget or None in (one.budget, other.budget)
        if len(measure.values(one)) == len(measure.values(other))
    ]
    p_values = [_p_value(*map(measure.values, pair)) for pair in pairs]
    made = zip(pairs, p_values, holm(p_values), strict=True)
    return [_test(*pair, measure, p, adjusted) for pair, p, adjusted in made]


def _test(
    first: MeasuredRow, second: MeasuredRow, measure: Measure, p: float, adjusted: float
) -> Test:
    one, other, only = measure.values(first), measure.values(second), (None, None)
    if isinstance(one[0], bool):
        only = _alone(one, other)
        difference = paired_shares(only[1], only[0], len(one))
    else:
        difference = paired_difference(other, one, measure.most)
    better = max((first, second), key=measure.goodness).method
    return Test(
        measure=measure.name,
        first=first.method,
        second=second.method,
        budget=first.budget or second.budget,
        units=len(one),
        first_mean=fmean(one),
        second_mean=fmean(other),
        only_first=only[0],
        only_second=only[1],
        difference=difference,
        p=p,
        p_adjusted=adjusted,
        verdict=better if adjusted < 1 - LEVEL else "no difference shown",
    )


def _alone(one: Values, other: Values) -> tuple[int, int]:
    pairs = list(zip(one, other, strict=True))
    return pairs.count((True, False)), pairs.count((False, True))


def _p_value(one: Values, other: Values) -> float:
    """Return the p-value of the test that fits: of yes or no, or of a number on every unit."""
    if isinstance(one[0], bool):
        return mcnemar(*_alone(one, other))
    return sign_flips([a - b for a, b in zip(one, other, strict=True)])


def winners(rows: Sequence[MeasuredRow], measure: Measure) -> dict[Any, str]:
    """Return per budget the method that is significantly better than every other, if one is.

    Holm adjusts over all pairs and budgets. The oracle, and rows that measure nothing, do not
    count.
    """
    counted = [row for row in rows if measure.values(row) and row.method != ORACLE]
    counted = [row for row in counted if measure.counts(row) and row.budget is not None]
    counted.sort(key=measure.goodness, reverse=True)
    pairs = [(a, b) for a, b in combinations(counted, 2) if a.budget == b.budget]
    p_values = [_p_value(*map(measure.values, pair)) for pair in pairs]
    best = {row.budget: row.method for row in reversed(counted)}
    against: dict[Any, list[float]] = {}
    for (better, _), p in zip(pairs, holm(p_values), strict=True):
        if best[better.budget] == better.method:
            against.setdefault(better.budget, []).append(p)
    return {at: best[at] for at, found in against.items() if max(found) < 1 - LEVEL}


FIRST = Column("1st", "first", bold=lambda test: test.verdict == test.first)
SECOND = Column("2nd", "second", bold=lambda test: test.verdict == test.second)
TESTS = (
    FIRST,
    SECOND,
    Column("of", "measure"),
    Column("budget"),
    Column("1st mean", lambda test: _mean(test, test.first_mean)),
    Column("2nd mean", lambda test: _mean(test, test.second_mean)),
    Column("only 1st", "only_first"),
    Column("only 2nd", "only_second"),
    Column("difference", lambda test: _difference(test)),
    Column("p", format=lambda p: _p(p)),
    Column("Holm", "p_adjusted", lambda p: _p(p)),
)
SHORT = (
    FIRST,
    SECOND,
    Column("budget"),
    Column("difference", lambda test: _difference(test)),
    Column("p (Holm)", "p_adjusted", lambda p: _p(p)),
)
"""What a terminal has room for; the method that is significantly better is bold."""


def explained_tests(tests: Sequence[Test]) -> list[str]:
    """Say what a table of tests shows, in sentences without their stops."""
    said = []
    if any(test.verdict in (test.first, test.second) for test in tests):
        said.append("Bold: significantly better")
    if any(test.only_first is not None for test in tests):
        said.append(
            "Solved or found: means are shares; only 1st, only 2nd: units with a yes of one alone; "
            f"difference: 1st less 2nd in points, with Tango's {LEVEL:.0%} score interval; p: "
            "McNemar's exact test"
        )
    if others := list(dict.fromkeys(test.measure for test in tests if test.only_first is None)):
        said.append(
            f"{', '.join(others)}: difference of the means over the units, 1st less 2nd, with the "
            f"{LEVEL:.0%} {T_INTERVAL}; p: permutation test that flips signs"
        )
    for name in dict.fromkeys(test.measure for test in tests):
        said += powerless([test for test in tests if test.measure == name])
    last = "p is two-sided; Holm: p adjusted over all pairs of the measure, intervals are not"
    return [*said, last]


def powerless(tests: Sequence[Test]) -> list[str]:
    """Say that no test of a family, all by one measure, could have been significant, if so."""
    if not tests:
        return []
    most = max(test.units for test in tests)
    why = too_few(most, len(tests), drawn=tests[0].only_first is None)
    return [f"No difference of {tests[0].measure} can be significant: {why}"] if why else []


def _mean(test: Test, mean: float) -> str:
    return f"{mean:.4f}" if test.only_first is None else f"{100 * mean:.1f} %"


def _difference(test: Test) -> str:
    form, scale = ("+.4f", 1) if test.only_first is None else ("+.1f", 100)
    return test.difference.written(form, " to ", scale)


def _p(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}"
