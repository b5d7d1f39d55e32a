"""What a sweep found: shares with intervals, and tests of methods on the same problems."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvlab.fast.lab.evaluate.statistics import holm, mcnemar, mean_interval, paired_shares, wilson
from kvlab.fast.lab.sweep.jobs import Job
from kvlab.fast.lab.sweep.run import Stored
from kvlab.reference.proofs.errata import Interval

LEVEL = 0.95
"""Of every interval; tests are called significant below 1 − LEVEL."""

MEASURED = ("output_error", "kl", "agreement", "entries", "nbytes", "average_bits", "payload_bits")


@dataclass(frozen=True)
class Point:
    """One method at one budget, over the problems of all seeds."""

    method: str
    budget: int | None
    problems: int
    """That were asked."""
    wanted: int
    refusal: str | None
    """Why there are no figures: what the method cannot do, or what has not been run."""
    solved: float | None = None
    interval: Interval | None = None
    """Wilson's, of ``solved``."""
    answered: float | None = None
    """Share with the right final answer."""
    by_seed: Mapping[int, float] = field(default_factory=dict)
    """Share solved of every seed's problems."""
    measured: Mapping[str, Interval] = field(default_factory=dict)
    """Mean and bootstrap interval of each of `MEASURED`, over the measured problems."""
    peak_entries: float | None = None
    """Most that any measured problem held at any time, per KV head, mean over the layers; None if
    nothing was measured."""
    seconds_per_token: float | None = None
    outcomes: tuple[bool, ...] = field(default=(), repr=False)
    """Solved or not, ordered by seed and problem: in the same order for all methods."""

    @property
    def holds_budget(self) -> bool | None:
        """Whether no measured problem ever held more entries than the budget; None: not known."""
        if self.budget is None:
            return True
        return None if self.peak_entries is None else self.peak_entries <= self.budget


@dataclass(frozen=True)
class Test:
    """Two methods on the same problems."""

    first: str
    second: str
    budget: int | None
    """Of those of the two that take one."""
    problems: int
    first_solved: float
    second_solved: float
    only_first: int
    """Problems that the first alone solved."""
    only_second: int
    difference: Interval
    """Share solved by the second less that of the first, with its bootstrap interval."""
    p: float
    """McNemar's, exact and two-sided."""
    p_adjusted: float
    """By Holm, over all tests of the task."""

    @property
    def verdict(self) -> str:
        """Which method is better, if that can be said."""
        if self.p_adjusted >= 1 - LEVEL:
            return "no difference shown"
        return self.second if self.only_second > self.only_first else self.first


@dataclass(frozen=True)
class TaskSummary:
    """What a sweep found for one model on one task."""

    model: str
    task: str
    budgets: Mapping[str, int]
    """As the sweep states them, and in entries."""
    mean_length: float
    """Tokens of prompt and solution."""
    seeds: tuple[int, ...]
    """That are counted."""
    points: tuple[Point, ...]
    tests: tuple[Test, ...]
    """The pairs that the sweep names."""
    leaders: Mapping[int, frozenset[str]]
    """Per budget, of the methods known to hold it, those that are not shown to be worse than the
    one that solved most: by McNemar's test of all pairs at all budgets, adjusted by Holm. None
    where none of them solved a problem."""

    def point(self, method: str, budget: int | None) -> Point:
        """Return one point; for a method that takes no budget, whatever the budget.

        Raises:
            KeyError: if there is none.
        """
        for each in self.points:
            if each.method == method and each.budget in (budget, None):
                return each
        raise KeyError((method, budget))


def summarise(stored: Stored) -> list[TaskSummary]:
    """Sum a sweep up, also one that is not complete.

    A seed counts once all its jobs on the model and task are done, so that all methods answer for
    the same problems; where no seed is complete, points that are not have no figures.

    Raises:
        ValueError: if a file of results is damaged.
    """
    plan = stored.plan
    jobs = {job.id: job for job in plan.jobs()}
    rows = _rows_by_point(stored, jobs)
    missing = {(job.model, job.task, job.seed) for job in stored.missing()}
    found = []
    for model in plan.sweep.models:
        for task in plan.sweep.tasks:
            complete = [each for each in plan.sweep.seeds if (model, task, each) not in missing]
            seeds = tuple(complete or plan.sweep.seeds)
            points = tuple(
                _point(
                    method,
                    budget,
                    [
                        row
                        for row in rows.get((model, task, method, budget), [])
                        if row["seed"] in seeds
                    ],
                    plan.sweep.problems * len(seeds),
                )
                for method, budget in plan.points(model, task)
            )
            budgets = plan.entries[model][task]
            found.append(
                TaskSummary(
                    model=model,
                    task=task,
                    budgets=budgets,
                    mean_length=plan.lengths[model][task],
                    seeds=seeds,
                    points=points,
                    tests=tuple(named_tests(points, plan.sweep.pairs)),
                    leaders=leaders(points),
                )
            )
    return found


Row = dict[str, Any]


def _rows_by_point(stored: Stored, jobs: Mapping[str, Job]) -> dict[tuple[Any, ...], list[Row]]:
    """Group the rows; what a point is called is the plan's to say, not the row's."""
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    for row in stored.data.read(jobs).to_pylist():
        job = jobs[row["job"]]
        grouped.setdefault((job.model, job.task, job.method, job.budget), []).append(row)
    return grouped


def _point(method: str, budget: int | None, rows: Sequence[Row], wanted: int) -> Point:
    refused = [row["refusal"] for row in rows if row["refusal"] is not None]
    if refused:
        reason = f"does not fit {len(refused)} of {len(rows)} problems: {refused[0]}"
        return Point(method, budget, len(rows), wanted, reason)
    if len(rows) < wanted:
        return Point(method, budget, len(rows), wanted, f"{len(rows)} of {wanted} problems run")
    rows = sorted(rows, key=lambda row: (row["seed"], row["problem"]))
    outcomes = tuple(row["solved"] for row in rows)
    seeds = sorted({row["seed"] for row in rows})
    return Point(
        method,
        budget,
        len(rows),
        wanted,
        refusal=None,
        solved=float(np.mean(outcomes)),
        interval=Interval(float(np.mean(outcomes)), *wilson(sum(outcomes), len(outcomes), LEVEL)),
        answered=float(np.mean([row["answer_correct"] for row in rows])),
        by_seed={
            seed: float(np.mean([row["solved"] for row in rows if row["seed"] == seed]))
            for seed in seeds
        },
        measured=_measured(rows),
        peak_entries=max((r["entries"] for r in rows if r["entries"] is not None), default=None),
        seconds_per_token=float(np.mean([row["seconds_per_token"] for row in rows])),
        outcomes=outcomes,
    )


def _measured(rows: Sequence[Row]) -> dict[str, Interval]:
    measured = [row for row in rows if row["output_error"] is not None]
    if len(measured) < 2:
        return {}
    return {
        name: Interval(*mean_interval([row[name] for row in measured], LEVEL)) for name in MEASURED
    }


def named_tests(points: Sequence[Point], pairs: Sequence[tuple[str, str]]) -> Iterator[Test]:
    """Test pairs of methods at every budget that both have; p-values are adjusted over them all."""
    compared = [
        (first, second) for pair in pairs for first, second in _at_common_budgets(points, *pair)
    ]
    p_values = [mcnemar(*_discordant(first, second)) for first, second in compared]
    for (first, second), p, adjusted in zip(compared, p_values, holm(p_values), strict=True):
        only_first, only_second = _discordant(first, second)
        difference = paired_shares(only_first, only_second, first.problems, LEVEL)
        yield Test(
            first.method,
            second.method,
            first.budget or second.budget,
            first.problems,
            float(np.mean(first.outcomes)),
            float(np.mean(second.outcomes)),
            only_first,
            only_second,
            Interval(*difference),
            p,
            adjusted,
        )


def _at_common_budgets(
    points: Sequence[Point], first: str, second: str
) -> Iterator[tuple[Point, Point]]:
    ours = [p for p in points if p.method == first and p.refusal is None]
    theirs = [p for p in points if p.method == second and p.refusal is None]
    for one in ours:
        for other in theirs:
            if one.budget == other.budget or None in (one.budget, other.budget):
                yield one, other


def _discordant(first: Point, second: Point) -> tuple[int, int]:
    one, other = np.array(first.outcomes), np.array(second.outcomes)
    return int((one & ~other).sum()), int((other & ~one).sum())


def leaders(points: Sequence[Point]) -> dict[int, frozenset[str]]:
    """Return per budget the methods known to hold it and not shown to be worse than the best.

    Where the best solved nothing there are none.
    """
    points = [p for p in points if p.refusal is None and p.holds_budget]
    budgets = sorted({p.budget for p in points if p.budget is not None})
    groups = [[p for p in points if p.budget == budget] for budget in budgets]
    tests = [
        (number, i, j)
        for number, group in enumerate(groups)
        for i in range(len(group))
        for j in range(i)
    ]
    adjusted = holm([mcnemar(*_discordant(groups[n][i], groups[n][j])) for n, i, j in tests])
    differs = {(n, i, j) for (n, i, j), p in zip(tests, adjusted, strict=True) if p < 1 - LEVEL}
    found = {}
    for number, (budget, group) in enumerate(zip(budgets, groups, strict=True)):
        best = max(range(len(group)), key=lambda i: group[i].solved or 0.0)
        found[budget] = frozenset(
            point.method
            for i, point in enumerate(group)
            if group[best].solved and (number, max(i, best), min(i, best)) not in differs
        )
    return found
