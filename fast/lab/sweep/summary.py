"""What a sweep found: means with intervals, and tests of methods on the same problems."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from math import exp
from statistics import fmean
from typing import Any

from kvlab.fast.lab.evaluate.controls import after_eviction, gain_mark, gain_of, matched
from kvlab.fast.lab.evaluate.pairs import Measure, Test, paired_tests, winners
from kvlab.fast.lab.evaluate.statistics import (
    Interval,
    mean_interval,
    paired_difference,
    perplexity_of,
    wilson,
)
from kvlab.fast.lab.evaluate.tasks import rates_texts
from kvlab.fast.lab.points import After, MeasuredRow, all_of
from kvlab.fast.lab.sweep.design import Sweep
from kvlab.fast.lab.sweep.jobs import MEASURED, Result
from kvlab.fast.lab.sweep.plan import Job, Plan, Subject
from kvlab.fast.lab.tables import plain

FULL, STEPS_AFTER = "full", "steps_after_eviction"


@dataclass(frozen=True, kw_only=True)
class Point(MeasuredRow):
    """One method at one budget, over the problems (or windows of a text) of all seeds.

    Figures are None or empty where the task has none, or nothing was measured.
    """

    budget: int | None
    task: str = ""
    results: Sequence[Result] = field(default=(), repr=False)
    """Ordered by seed and problem, so in the same order for all methods."""
    full: "Point | None" = field(default=None, repr=False)
    """The full cache on the same problems, if the sweep has it and rates their likelihood."""

    @property
    def problems(self) -> int:
        """How many problems were asked."""
        return len(self.results)

    def _values(self, name: str) -> tuple[Any, ...]:
        if self.refusal is not None:
            return ()
        values = (getattr(each, name) for each in self.results)
        return tuple(value for value in values if value is not None)

    @cached_property
    def outcomes(self) -> tuple[bool, ...]:
        """Solved or not, of every problem."""
        return self._values("solved")

    @cached_property
    def losses(self) -> tuple[float, ...]:
        """Loss per token of every problem in nats."""
        return self._values("loss")

    @cached_property
    def drafts(self) -> tuple[float, ...]:
        """Share of tokens that the full cache accepts, of every problem."""
        return self._values("accepted")

    @cached_property
    def figures(self) -> Mapping[str, tuple[float, ...]]:
        """The values of each of `MEASURED` on the measured problems."""
        found = {name: self._values(name) for name in MEASURED}
        return {name: values for name, values in found.items() if values}

    def mean(self, name: str) -> float | None:
        """Return the mean of a column of the results; None if the point is refused or lacks it."""
        values = self._values(name)
        return fmean(values) if values else None

    @cached_property
    def means(self) -> Mapping[str, float | None]:
        """The mean of each of `MEASURED`, and of what is known of drafts."""
        return {name: self.mean(name) for name in (*MEASURED, "accepted", "until_rejected")}

    @cached_property
    def estimates(self) -> Mapping[str, Interval | float | None]:
        """The mean of each of `MEASURED`, with its interval where there is one."""
        return {**self.means, **self.measured}

    @cached_property
    def measured(self) -> Mapping[str, Interval]:
        """Mean and interval of each of `MEASURED`, over two or more problems."""
        several = {name: each for name, each in self.figures.items() if len(each) > 1}
        return {name: mean_interval(each, least=0.0) for name, each in several.items()}

    @property
    def solved(self) -> float | None:
        """Share of the problems that were solved."""
        return fmean(self.outcomes) if self.outcomes else None

    @property
    def interval(self) -> Interval | None:
        """That share with Wilson's interval."""
        return wilson(self.outcomes) if self.outcomes else None

    @cached_property
    def perplexity(self) -> float | None:
        """Of the rated tokens of all problems, where the task rates a text or solutions."""
        return perplexity_of(self.losses, self._values("tokens")) if self.losses else None

    @property
    def gap(self) -> float | None:
        """Perplexity less the full cache's; None for a row that measures nothing."""
        full = None if self.measures_nothing else self.full and self.full.perplexity
        return None if full is None or self.perplexity is None else self.perplexity - full

    @cached_property
    def nats(self) -> Interval | None:
        """Loss per token less the full cache's, mean over the problems with its interval."""
        if self.gap is None or self.full is None or self.method == FULL or len(self.losses) < 2:
            return None
        return paired_difference(self.full.losses, self.losses)

    @property
    def perplexity_interval(self) -> Interval | None:
        """Perplexity with the ends of ``nats``, so as far as it is known against the full cache."""
        found, nats = self.perplexity, self.nats
        if found is None or nats is None:
            return None
        ends = (found * exp(end - nats.mean) for end in (nats.low, nats.high))
        return Interval(found, *ends)

    @property
    def perplexity_known(self) -> Interval | float | None:
        """Perplexity, with its interval where there is one; the full cache's is the yardstick."""
        return self.perplexity_interval or self.perplexity

    @property
    def accepted_known(self) -> Interval | float | None:
        """Mean of ``drafts``, with its interval where there is one."""
        return self.accepted or self.means["accepted"]

    @cached_property
    def accepted(self) -> Interval | None:
        """Mean and interval of ``drafts``, over two or more problems."""
        return mean_interval(self.drafts, 0.0, 1.0) if len(self.drafts) > 1 else None

    @cached_property
    def steps_after_eviction(self) -> After | None:
        """Of the steps over which error, KL and agreement are means, those after an eviction."""
        counts = zip(self._values("steps_after_eviction"), self._values("steps"), strict=True)
        return after_eviction(
            self.method, all_of(After(count, of, "steps") for count, of in counts)
        )

    @property
    def peak_entries(self) -> float | None:
        """Most entries, as `most_entries` says, of any measured problem."""
        return max(self.figures.get("entries", ()), default=None)

    @property
    def holds_budget(self) -> bool | None:
        """Whether no measured problem held more entries than the budget; None if not known."""
        if self.refusal is not None:
            return None
        if self.budget is None:
            return True
        return None if self.peak_entries is None else self.peak_entries <= self.budget

    @property
    def size(self) -> str:
        """The first option of the task, as text: how long a haystack is."""
        return re.split("[=,]", self.task)[1]

    @property
    def seconds_per_token(self) -> Interval | None:
        """Mean over the batches, from the fastest batch to the slowest; None for a single batch."""
        batches = {each.job: each.seconds_per_token for each in self.results}
        seconds = [each for each in batches.values() if each is not None]
        if self.refusal is not None or not 1 < len(batches) == len(seconds):
            return None
        return Interval(fmean(seconds), min(seconds), max(seconds))

    def plain(self) -> dict[str, Any]:
        """Return what was found as plain data; the figures are means."""
        return plain("point", self)


SOLVED = Measure("solved", lambda point: point.outcomes, sign=1)
ACCEPTED = Measure("accepted", lambda point: point.drafts, sign=1, most=1.0)
LOSS = Measure("nats per token", lambda point: point.losses)
ERROR, KL = ALONG = (
    Measure("output error", lambda p: p.figures.get("output_error", ()), after=STEPS_AFTER),
    Measure("KL", lambda p: p.figures.get("kl", ()), after=STEPS_AFTER),
)


def main_measure(points: Sequence[Point]) -> Measure:
    """Return what ranks methods on a task: problems solved, tokens accepted, or the loss."""
    for measure in (SOLVED, ACCEPTED, LOSS):
        if any(map(measure.values, points)):
            return measure
    return LOSS if rates_texts(points[0].task) else SOLVED


@dataclass(frozen=True)
class TaskSummary:
    """What a sweep found for one model on one task."""

    model: str
    task: str
    budgets: Mapping[str, int]
    """Budgets as the sweep states them, and in entries."""
    mean_length: float
    seeds: tuple[int, ...]
    points: tuple[Point, ...]
    tests: tuple[Test, ...]
    """The pairs that the sweep names, by every measure."""
    winners: Mapping[int, str]
    """Per budget, of the methods known to hold it, the one of `winners` by the `main_measure`."""
    controls: tuple[Point, ...] = ()
    """Matched controls that the sweep added to its methods."""
    gains: tuple[Test, ...] = ()
    """Every method against its matched control by the `main_measure`, where that ran."""

    def point(self, method: str, budget: int | str | None) -> Point:
        """Return one point, at entries or a budget as the sweep states it; KeyError if none is."""
        entries = self.budgets[budget] if isinstance(budget, str) else budget
        for each in (*self.points, *self.controls):
            if each.method == method and each.budget in (entries, None):
                return each
        raise KeyError((method, budget))

    def plain(self) -> dict[str, Any]:
        """Return what was found as plain data, a row per point."""
        return {
            "mean_length": self.mean_length,
            "budgets": self.budgets,
            "rows": [point.plain() for point in self.points],
            "controls": [point.plain() for point in self.controls],
            "gains": [asdict(each) for each in self.gains],
        }

    def gain_mark(self, point: Point) -> str:
        """Return the mark of a point that is not significantly better than its control."""
        return gain_mark(gain_of(self.gains, point.method, point.budget))


@dataclass(frozen=True)
class Results:
    """A plan, and what has been found of it so far."""

    plan: Plan
    rows: Sequence[Result] = field(repr=False)
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why jobs were given up, by their ids."""

    @cached_property
    def summaries(self) -> "list[TaskSummary]":
        """What was found, task by task."""
        return summarise(self)

    @property
    def summary(self) -> TaskSummary:
        """What was found, of a sweep of one model and one task."""
        (found,) = self.summaries
        return found

    def missing(self) -> list[Job]:
        """Return the jobs that have not been done."""
        done = {row.job for row in self.rows}
        return [job for job in self.plan.jobs() if job.id not in done]


def summarise(results: Results) -> list[TaskSummary]:
    """Sum a sweep up, also one that is not complete.

    A seed counts once all its jobs on the model and task are done or given up, so that all methods
    answer for the same problems. Where no seed is complete, incomplete points have no figures; a
    point of which a job was given up has none.
    """
    plan, waiting, rows = results.plan, results.missing(), defaultdict(list)
    jobs = {job.id: job for job in plan.jobs()}
    for row in results.rows:  # the name of a model comes from the plan, not from the row
        rows[jobs[row.job].point].append(row)
    given_up = {x.point: results.failures[x.id] for x in waiting if x.id in results.failures}
    found = []
    for subject in plan.subjects:
        part, where = subject.part, (subject.model, subject.part.task)
        late = {x.seed for x in waiting if x.point[:2] == where and x.point not in given_up}
        seeds = tuple(each for each in part.seeds if each not in late) or part.seeds
        points: list[Point] = []
        for method, budget in plan.points(subject):
            at = *where, method, budget
            counted, wanted = [x for x in rows[at] if x.seed in seeds], part.problems * len(seeds)
            points.append(point_of(at[1:], counted, wanted, given_up.get(at)))
        found.append(_summary(plan.sweep, subject, seeds, against_full(points)))
    return found


def _summary(
    sweep: Sweep, subject: Subject, seeds: tuple[int, ...], points: Sequence[Point]
) -> TaskSummary:
    measure = main_measure(points)
    named = [each for each in points if each.method in sweep.methods]
    tests = (paired_tests(named, sweep.pairs, each) for each in (SOLVED, ACCEPTED, LOSS, *ALONG))
    return TaskSummary(
        model=subject.model,
        task=subject.part.task,
        budgets=subject.budgets,
        mean_length=subject.length,
        seeds=seeds,
        points=tuple(named),
        tests=tuple(chain.from_iterable(tests)),
        winners=winners([each for each in named if each.holds_budget], measure),
        controls=tuple(each for each in points if each.method not in sweep.methods),
        gains=tuple(paired_tests(points, matched(sweep.methods, sweep.runs), measure)),
    )


def point_of(
    at: tuple[str, str, int | None], results: Iterable[Result], wanted: int, failure: str | None
) -> Point:
    """Sum up the results of one point, of which ``wanted`` are expected.

    ``at`` are task, method and budget, ``failure`` says why one of its jobs was given up, if so.
    """
    found, why = tuple(sorted(results, key=lambda each: (each.seed, each.problem))), failure
    task, method, budget = at
    refused = [each.refusal for each in found if each.refusal is not None]
    if why is None and refused:
        why = f"does not fit {len(refused)} of {len(found)} problems: {refused[0]}"
    elif why is None and len(found) < wanted:
        why = f"{len(found)} of {wanted} problems run"
    return Point(
        task=task,
        method=method,
        budget=budget,
        results=found,
        refusal=why,
        failed=failure is not None,
        after_eviction=None if why else after_eviction(method, _after(found)),
    )


def _after(results: Sequence[Result]) -> After | None:
    """Sum up what was counted; an answer that ends at its first error counts as a whole."""
    counts = [each.after_eviction for each in results if each.after_eviction is not None]
    if not counts:
        return None
    if any(each.solved is not None and each.accepted is None for each in results):
        return After(sum(map(bool, counts)), len(counts), "answers")
    return After(sum(counts), sum(each.tokens or 0 for each in results), "tokens")


def against_full(points: Sequence[Point]) -> list[Point]:
    """Let points know the full cache's, if there is one and its likelihood was rated.

    It is looked for among all of them, because the first need not be the full cache's: a sweep may
    leave that out, and `compare` runs it first only where texts are rated.
    """
    full = next((each for each in points if each.method == FULL and each.losses), None)
    return [replace(each, full=full) for each in points] if full else list(points)


def pooled(found: Sequence[TaskSummary]) -> dict[tuple[str, str | None], list[Point]]:
    """Return the points that ran on all tasks, by method and budget as the sweep states it."""
    stated = [(None, None), *found[0].budgets.items()]
    points = {
        (first.method, text): [each.point(first.method, text) for each in found]
        for first in (*found[0].points, *found[0].controls)
        for text, entries in stated
        if first.budget == entries
    }
    ran = {at: own for at, own in points.items() if all(each.refusal is None for each in own)}
    if not ran:
        raise ValueError("no method ran on every task")
    return ran


@dataclass(frozen=True, kw_only=True)
class Joined(MeasuredRow):
    """One method at one budget, as the sweep states it, over the problems of several tasks."""

    holds_budget: bool | None
    """None if it is not known of a task, and held on the others."""
    interval: Interval
    """Share solved, with Wilson's interval."""
    outcomes: tuple[bool, ...] = field(repr=False)


def joined(points: Mapping[tuple[str, str | None], Sequence[Point]]) -> list[Joined]:
    """Join the outcomes of `pooled` points."""
    found = []
    for (method, budget), own in points.items():
        outcomes = tuple(outcome for each in own for outcome in each.outcomes)
        held = [each.holds_budget for each in own]
        found.append(
            Joined(
                method=method,
                budget=budget,
                after_eviction=all_of(each.after_eviction for each in own),
                holds_budget=None if None in held and False not in held else all(held),
                interval=wilson(outcomes),
                outcomes=outcomes,
            )
        )
    return found
