"""What a sweep found: shares with intervals, and tests of methods on the same problems."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, groupby
from operator import itemgetter
from typing import Any

import numpy as np

from kvlab.fast.lab.evaluate.statistics import (
    Interval,
    holm,
    mcnemar,
    mean_interval,
    paired_shares,
    wilson,
)
from kvlab.fast.lab.points import Row
from kvlab.fast.lab.sweep.jobs import MEASURED, Found
from kvlab.fast.lab.sweep.plan import ORACLE, Job, Plan
from kvlab.fast.lab.tables import MISSING
from kvlab.reference.methods import base_name

LEVEL = 0.95
"""Level of every interval; tests are called significant below 1 − LEVEL."""


@dataclass(frozen=True, kw_only=True)
class Point(Row):
    """One method at one budget, over the problems of all seeds."""

    budget: int | None
    problems: int
    """Problems that were asked."""
    solved: float | None = None
    interval: Interval | None = None
    """Wilson's interval of ``solved``."""
    by_seed: Mapping[int, float] = field(default_factory=dict)
    """Share solved of every seed's problems."""
    measured: Mapping[str, Interval] = field(default_factory=dict)
    """Mean and bootstrap interval of each of `MEASURED`, over two or more measured problems."""
    peak_entries: float | None = None
    """Most entries that any measured problem held at any time, per KV head, mean over the layers;
    None if nothing was measured."""
    seconds_per_token: float | None = None
    outcomes: tuple[bool, ...] = field(default=(), repr=False)
    """Solved or not, ordered by seed and problem: in the same order for all methods."""
    figures: Mapping[str, tuple[float, ...]] = field(default_factory=dict, repr=False)
    """The values of `MEASURED` on the measured problems, in the same order."""

    @property
    def holds_budget(self) -> bool | None:
        """Whether no measured problem held more entries than the budget; None if not known."""
        if self.budget is None:
            return True
        return None if self.peak_entries is None else self.peak_entries <= self.budget

    @property
    def percent(self) -> str:
        """The share solved with its interval, in percent; or a dash."""
        return MISSING if self.interval is None else self.interval.percent()

    def mean(self, name: str) -> float | None:
        """Return the mean of one of `MEASURED`; None if nothing was measured."""
        return float(np.mean(self.figures[name])) if name in self.figures else None


@dataclass(frozen=True, kw_only=True)
class Test:
    """Two methods on the same problems."""

    first: str
    second: str
    budget: int | None
    """Budget of the methods that take one."""
    problems: int
    first_solved: float
    second_solved: float
    only_first: int
    """Problems that only the first solved."""
    only_second: int
    difference: Interval
    """Share solved by the second minus the share solved by the first, with its bootstrap
    interval."""
    p: float
    """p-value of McNemar's test, exact and two-sided."""
    p_adjusted: float
    """The p-value after Holm's correction over all tests of the task."""
    verdict: str
    """The better method, if the test shows one."""


@dataclass(frozen=True)
class TaskSummary:
    """What a sweep found for one model on one task."""

    model: str
    task: str
    budgets: Mapping[str, int]
    """Budgets as the sweep states them, and in entries."""
    mean_length: float
    """Tokens of prompt and solution."""
    seeds: tuple[int, ...]
    """Seeds that are counted."""
    points: tuple[Point, ...]
    tests: tuple[Test, ...]
    """The pairs that the sweep names."""
    leaders: Mapping[int, frozenset[str]]
    """Per budget, of the methods known to hold it, those that are not shown to be worse than the
    method that solved most (McNemar's test of all pairs at all budgets, adjusted by Holm). The set
    is empty if no method solved a problem. The oracle does not count."""
    chance: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """Per budget at which eviction at random was tried, the methods that are not shown to solve
    more than its best variant (McNemar's test, adjusted by Holm)."""

    def point(self, method: str, budget: int | str | None) -> Point:
        """Return one point; a method that takes no budget has the same point at every budget.

        Args:
            method: as the sweep names it.
            budget: entries, or a text as the sweep states it.

        Raises:
            KeyError: if there is none.
        """
        entries = self.budgets[budget] if isinstance(budget, str) else budget
        for each in self.points:
            if each.method == method and each.budget in (entries, None):
                return each
        raise KeyError((method, budget))


@dataclass(frozen=True)
class Results:
    """A plan, and what has been found of it so far."""

    plan: Plan
    rows: Sequence[Found] = field(repr=False)
    """One row per method, budget and problem."""

    def missing(self) -> list[Job]:
        """Return the jobs that have not been done."""
        done = {row["job"] for row in self.rows}
        return [job for job in self.plan.jobs() if job.id not in done]


def summarise(results: Results) -> list[TaskSummary]:
    """Sum a sweep up, also one that is not complete.

    A seed counts once all its jobs on the model and task are done, so that all methods answer for
    the same problems. Where no seed is complete, incomplete points have no figures.
    """
    plan, rows = results.plan, defaultdict(list)
    jobs = {job.id: job for job in plan.jobs()}
    for row in results.rows:
        job = jobs[row["job"]]  # the name of a model comes from the plan, not from the row
        rows[job.model, job.task, job.method, job.budget].append(row)
    missing = {(job.model, job.task, job.seed) for job in results.missing()}
    found = []
    for model in plan.sweep.models:
        for task in plan.sweep.tasks:
            complete = [each for each in plan.sweep.seeds if (model, task, each) not in missing]
            seeds = tuple(complete or plan.sweep.seeds)
            wanted = plan.sweep.problems * len(seeds)
            points = []
            for method, budget in plan.points(model, task):
                own = [row for row in rows[model, task, method, budget] if row["seed"] in seeds]
                points.append(point_of(method, budget, own, wanted))
            found.append(
                TaskSummary(
                    model=model,
                    task=task,
                    budgets=plan.entries[model][task],
                    mean_length=plan.lengths[model][task],
                    seeds=seeds,
                    points=tuple(points),
                    tests=tuple(named_tests(points, plan.sweep.pairs)),
                    leaders=leaders(points),
                    chance=not_above_chance(points),
                )
            )
    return found


def point_of(method: str, budget: int | None, rows: Sequence[Found], wanted: int) -> Point:
    """Sum up the rows of one point, of which ``wanted`` are expected."""
    point = partial(Point, method=method, budget=budget, problems=len(rows))
    refused = [row["refusal"] for row in rows if row["refusal"] is not None]
    if refused:
        return point(refusal=f"does not fit {len(refused)} of {len(rows)} problems: {refused[0]}")
    if len(rows) < wanted:
        return point(refusal=f"{len(rows)} of {wanted} problems run")
    rows = sorted(rows, key=lambda row: (row["seed"], row["problem"]))
    outcomes = tuple(row["solved"] for row in rows)
    columns = {name: [row[name] for row in rows if row[name] is not None] for name in MEASURED}
    figures = {name: tuple(values) for name, values in columns.items() if values}
    share, seconds = float(np.mean(outcomes)), [row["seconds_per_token"] for row in rows]
    return point(
        solved=share,
        interval=Interval(share, *wilson(sum(outcomes), len(outcomes), LEVEL)),
        by_seed={
            seed: float(np.mean([row["solved"] for row in own]))
            for seed, own in groupby(rows, key=itemgetter("seed"))
        },
        measured={
            name: Interval(*mean_interval(values, LEVEL))
            for name, values in figures.items()
            if len(values) > 1
        },
        peak_entries=max(figures.get("entries", ()), default=None),
        seconds_per_token=None if None in seconds else float(np.mean(seconds)),
        outcomes=outcomes,
        figures=figures,
    )


def plain(point: Point) -> dict[str, Any]:
    """Return what was found at one point as plain data; the figures are means."""
    share, seconds, nbytes = point.interval, point.seconds_per_token, point.mean("nbytes")
    return {
        "spec": point.method,
        "budget": point.budget,
        "problems": point.problems,
        "refusal": point.refusal,
        "accuracy": point.solved,
        "accuracy_low": None if share is None else share.low,
        "accuracy_high": None if share is None else share.high,
        **{name: point.mean(name) for name in MEASURED if name != "nbytes"},
        "kilobytes": None if nbytes is None else nbytes / 1024,
        "milliseconds_per_token": None if seconds is None else 1000 * seconds,
    }


# --- tests of pairs ------------------------------------------------------------------------------

FULL = "full"
CONTROL = "random"
"""The method that evicts at random."""

Pair = tuple[Point, Point]


def _discordant(first: Point, second: Point) -> tuple[int, int]:
    one, other = np.array(first.outcomes), np.array(second.outcomes)
    return int((one & ~other).sum()), int((other & ~one).sum())


def _adjusted(pairs: Sequence[Pair]) -> list[float]:
    """Return McNemar's p-value of each pair after Holm's correction over all of them."""
    return holm([mcnemar(*_discordant(*pair)) for pair in pairs])


def _shown_better(pairs: Sequence[Pair]) -> list[bool]:
    """Say of each pair whether the first is shown to have solved more than the second."""
    return [
        p < 1 - LEVEL and sum(first.outcomes) > sum(second.outcomes)
        for (first, second), p in zip(pairs, _adjusted(pairs), strict=True)
    ]


def _by_budget(points: Sequence[Point]) -> dict[int, list[Point]]:
    """Group points that have figures and a budget, the best first, without the oracle."""
    counted = [p for p in points if p.refusal is None and p.method != ORACLE]
    counted.sort(key=lambda point: point.solved or 0.0, reverse=True)
    budgets = sorted({p.budget for p in counted if p.budget is not None})
    return {budget: [p for p in counted if p.budget == budget] for budget in budgets}


def named_tests(points: Sequence[Point], names: Sequence[tuple[str, str]]) -> Iterator[Test]:
    """Test pairs of methods at every budget that both have; Holm adjusts all p-values together."""
    ran = [point for point in points if point.refusal is None]
    pairs = [
        (one, other)
        for first, second in names
        for one in ran
        for other in ran
        if (one.method, other.method) == (first, second)
        if one.budget == other.budget or None in (one.budget, other.budget)
    ]
    for (first, second), adjusted in zip(pairs, _adjusted(pairs), strict=True):
        only_first, only_second = _discordant(first, second)
        better = second.method if only_second > only_first else first.method
        difference = paired_shares(only_first, only_second, first.problems, LEVEL)
        yield Test(
            first=first.method,
            second=second.method,
            budget=first.budget or second.budget,
            problems=first.problems,
            first_solved=float(np.mean(first.outcomes)),
            second_solved=float(np.mean(second.outcomes)),
            only_first=only_first,
            only_second=only_second,
            difference=Interval(*difference),
            p=mcnemar(only_first, only_second),
            p_adjusted=adjusted,
            verdict=better if adjusted < 1 - LEVEL else "no difference shown",
        )


def leaders(points: Sequence[Point]) -> dict[int, frozenset[str]]:
    """Return per budget the methods known to hold it and not shown to be worse than the best.

    If the best solved nothing, the set is empty.
    """
    groups = _by_budget([point for point in points if point.holds_budget])
    pairs = [pair for group in groups.values() for pair in combinations(group, 2)]
    beaten = {
        (best.budget, best.method, other.method)
        for (best, other), better in zip(pairs, _shown_better(pairs), strict=True)
        if better
    }
    return {
        budget: frozenset(
            point.method
            for point in group
            if group[0].solved and (budget, group[0].method, point.method) not in beaten
        )
        for budget, group in groups.items()
    }


def not_above_chance(points: Sequence[Point]) -> dict[int, frozenset[str]]:
    """Return per budget the methods that are not shown to solve more than eviction at random."""
    pairs: list[Pair] = []
    for group in _by_budget(points).values():
        controls = [point for point in group if base_name(point.method) == CONTROL]
        others = [point for point in group if base_name(point.method) != CONTROL]
        pairs += [(other, controls[0]) for other in others if controls]
    found: dict[int, frozenset[str]] = {}
    for (other, _), better in zip(pairs, _shown_better(pairs), strict=True):
        assert other.budget is not None
        names = frozenset() if better else frozenset([other.method])
        found[other.budget] = found.get(other.budget, frozenset()) | names
    return found
