"""Paired tests: two methods on the same problems, windows or needles."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from math import inf
from statistics import fmean
from typing import Any

from kvlab.fast.lab.evaluate.statistics import (
    LEVEL,
    Interval,
    holm,
    mcnemar,
    paired_difference,
    paired_shares,
    sign_flips,
    too_few,
)
from kvlab.fast.lab.points import ORACLE, MeasuredRow, never
from kvlab.fast.lab.tables import Table, layout, percent, sentences

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

    @property
    def first_wins(self) -> bool:
        """Whether the first method is significantly better."""
        return self.verdict == self.first

    @property
    def second_wins(self) -> bool:
        """Whether the second one is."""
        return self.verdict == self.second

    @property
    def first_shown(self) -> str:
        """The first mean: a share in percent, or a number."""
        return f"{self.first_mean:.4f}" if self.only_first is None else percent(self.first_mean, 1)

    @property
    def second_shown(self) -> str:
        """The second mean."""
        return replace(self, first_mean=self.second_mean).first_shown

    @property
    def difference_shown(self) -> str:
        """The difference with its interval: of shares in points."""
        return self.written()

    def written(self, sign: int = 1) -> str:
        """Write the difference, or with −1 as sign the second mean less the first."""
        found = self.difference if sign > 0 else -self.difference
        form, scale = ("+.4f", 1) if self.only_first is None else ("+.1f", 100)
        return found.written(form, " to ", scale)


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


def table_of_tests(tests: Sequence[Test], name: str = "tests", title: str = "") -> Table:
    """Lay out tests as a table of ``tables.toml``: ``tests``, or the shorter ``pairs``."""
    table, measures = (
        layout(name).table(tests, title),
        dict.fromkeys(each.measure for each in tests),
    )
    others = dict.fromkeys(each.measure for each in tests if each.only_first is None)
    none = (powerless([test for test in tests if test.measure == each]) for each in measures)
    legend = sentences(
        "tests",
        shares=len(others) < len(measures),
        others=", ".join(others),
        powerless=". ".join(chain.from_iterable(none)),
    )
    return replace(table, legend=[*table.legend, *legend])


def powerless(tests: Sequence[Test]) -> list[str]:
    """Say that no test of a family, all by one measure, could have been significant, if so."""
    if not tests:
        return []
    most = max(test.units for test in tests)
    why = too_few(most, len(tests), drawn=tests[0].only_first is None)
    return [f"No difference of {tests[0].measure} can be significant: {why}"] if why else []
