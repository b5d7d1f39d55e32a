"""What a sweep found: means with intervals, and tests of methods on the same problems."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from statistics import fmean
from typing import Any

from kvlab.fast.lab.evaluate.controls import NO_GAIN, evicts, is_significant, matched
from kvlab.fast.lab.evaluate.pairs import LEVEL, Measure, Test, leaders, paired_tests
from kvlab.fast.lab.evaluate.statistics import (
    Interval,
    mean_interval,
    paired_difference,
    perplexity_of,
    wilson,
)
from kvlab.fast.lab.points import ORACLE, After, HeldRow, all_of
from kvlab.fast.lab.sweep.jobs import DRAFTED, MEASURED, Found
from kvlab.fast.lab.sweep.plan import Job, Plan
from kvlab.fast.lab.tables import MISSING

FULL = "full"


@dataclass(frozen=True, kw_only=True)
class Point(HeldRow):
    """One method at one budget, over the problems of all seeds; a window of a text is a problem."""

    budget: int | None
    task: str = ""
    problems: int
    """Problems that were asked."""
    solved: float | None = None
    interval: Interval | None = None
    """Wilson's interval of ``solved``."""
    by_seed: Mapping[int, float] = field(default_factory=dict)
    """Share solved of every seed's problems; of a rated text, loss per token."""
    perplexity: float | None = None
    """Of the rated tokens of all problems, where the task rates a text or solutions."""
    gap: float | None = None
    """Perplexity less the full cache's, if the sweep has it."""
    nats: Interval | None = None
    """Loss per token less the full cache's, mean over the problems, with its bootstrap interval."""
    measured: Mapping[str, Interval] = field(default_factory=dict)
    """Mean and bootstrap interval of each of `MEASURED`, over two or more measured problems."""
    peak_entries: float | None = None
    """Most entries, as `ENTRIES` says, of any measured problem; None if nothing was measured."""
    seconds_per_token: Interval | None = None
    """Mean over the batches, from the fastest batch to the slowest; None for a single batch."""
    outcomes: tuple[bool, ...] = field(default=(), repr=False)
    """Solved or not, ordered by seed and problem: in the same order for all methods."""
    figures: Mapping[str, tuple[float, ...]] = field(default_factory=dict, repr=False)
    """The values of `MEASURED` on the measured problems, in the same order."""
    drafts: tuple[float, ...] = field(default=(), repr=False)
    """Share of tokens that the full cache accepts, of every problem in the same order."""
    until_rejected: float | None = None
    """Tokens before the first that the full cache rejects, mean over the problems."""
    losses: tuple[float, ...] = field(default=(), repr=False)
    """Loss per token of every problem in nats, in the same order, where its likelihood is rated."""

    @cached_property
    def accepted(self) -> Interval | None:
        """Mean and bootstrap interval of ``drafts``, over two or more problems."""
        return Interval(*mean_interval(self.drafts, LEVEL)) if len(self.drafts) > 1 else None

    @property
    def percent(self) -> str:
        """The share solved with its interval, in percent; or a dash."""
        return MISSING if self.interval is None else self.interval.percent()

    def mean(self, name: str) -> float | None:
        """Return the mean of one of `MEASURED`; None if nothing was measured."""
        return fmean(self.figures[name]) if name in self.figures else None


SOLVED = Measure("solved", lambda point: point.outcomes, sign=1)
ACCEPTED = Measure("accepted", lambda point: point.drafts, sign=1)
LOSS = Measure("nats per token", lambda point: point.losses)
ALONG = (
    Measure("output error", lambda point: point.figures.get("output_error", ())),
    Measure("KL", lambda point: point.figures.get("kl", ())),
)
"""What is measured along the full cache's answers."""


def main_measure(points: Sequence[Point]) -> Measure:
    """Return what ranks methods on a task: problems solved, tokens accepted, or the loss."""
    for measure in (SOLVED, ACCEPTED):
        if any(map(measure.values, points)):
            return measure
    return LOSS


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
    """The pairs that the sweep names, by every measure."""
    leaders: Mapping[int, frozenset[str]]
    """Per budget, of the methods known to hold it, those that are not significantly worse than the
    best by the `main_measure` (paired tests of all pairs at all budgets, adjusted by Holm). The set
    is empty if no method solved a problem. The oracle does not count."""
    controls: tuple[Point, ...] = ()
    """Matched controls that the sweep added to its methods."""
    gains: tuple[Test, ...] = ()
    """Every method at every budget against its matched control by the `main_measure`, where the
    control ran."""

    def point(self, method: str, budget: int | str | None) -> Point:
        """Return one point; a method that takes no budget has the same point at every budget.

        Args:
            method: as the sweep names it.
            budget: entries, or a text as the sweep states it.

        Raises:
            KeyError: if there is none.
        """
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
            "rows": [plain(point) for point in self.points],
            "controls": [plain(point) for point in self.controls],
            "gains": [asdict(each) for each in self.gains],
        }

    def gain_mark(self, point: Point) -> str:
        """Return the mark of a point that is not significantly better than its control."""
        at = point.method, point.budget
        found = [each for each in self.gains if (each.second, each.budget) == at]
        return "" if all(map(is_significant, found)) else f" {NO_GAIN}"


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

    def failure(self, job: Job) -> str | None:
        """Return why a missing job was given up, if it was."""
        return None


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
    waiting = results.missing()
    missing = {(job.model, job.task, job.seed) for job in waiting}
    given_up = {
        (job.model, job.task, job.method, job.budget): why
        for job in waiting
        if (why := results.failure(job)) is not None
    }
    found = []
    for model in plan.fingerprints:
        for part in plan.sweep.parts:
            if model not in part.models:
                continue
            task = part.task
            complete = [each for each in part.seeds if (model, task, each) not in missing]
            seeds = tuple(complete or part.seeds)
            wanted = part.problems * len(seeds)
            points: list[Point] = []
            for method, budget in plan.points(model, task):
                own = [row for row in rows[model, task, method, budget] if row["seed"] in seeds]
                point = point_of(task, method, budget, own, wanted)
                if why := given_up.get((model, task, method, budget)):
                    point = replace(point, refusal=why, failed=True)
                points.append(point)
            points, measure = against_full(points), main_measure(points)
            named = [each for each in points if each.method in plan.sweep.methods]
            found.append(
                TaskSummary(
                    model=model,
                    task=task,
                    budgets=plan.entries[model][task],
                    mean_length=plan.lengths[model][task],
                    seeds=seeds,
                    points=tuple(named),
                    tests=tuple(
                        test
                        for each in (SOLVED, ACCEPTED, LOSS, *ALONG)
                        for test in paired_tests(named, plan.sweep.pairs, each)
                    ),
                    leaders=leaders([each for each in named if each.holds_budget], measure),
                    controls=tuple(each for each in points if each not in named),
                    gains=tuple(
                        paired_tests(points, matched(plan.sweep.methods, plan.sweep.runs), measure)
                    ),
                )
            )
    return found


def point_of(
    task: str, method: str, budget: int | None, rows: Sequence[Found], wanted: int
) -> Point:
    """Sum up the rows of one point, of which ``wanted`` are expected."""
    point = partial(Point, task=task, method=method, budget=budget, problems=len(rows))
    refused = [row["refusal"] for row in rows if row["refusal"] is not None]
    if failed := [row["refusal"] for row in rows if row.get("failed")]:
        return point(refusal=failed[0], failed=True)
    if refused:
        return point(refusal=f"does not fit {len(refused)} of {len(rows)} problems: {refused[0]}")
    if len(rows) < wanted:
        return point(refusal=f"{len(rows)} of {wanted} problems run")
    rows = sorted(rows, key=lambda row: (row["seed"], row["problem"]))
    columns = {name: [row[name] for row in rows if row[name] is not None] for name in MEASURED}
    figures = {name: tuple(values) for name, values in columns.items() if values}
    outcomes, losses, drafts, until_rejected = (
        tuple(row[name] for row in rows if row.get(name) is not None)
        for name in ("solved", "loss", *DRAFTED)
    )
    peak = max(figures.get("entries", ()), default=None)
    return point(
        after_eviction=_after(method, rows, bool(outcomes) and not drafts),
        **_share(outcomes),
        by_seed={
            seed: fmean(row["solved" if outcomes else "loss"] for row in own)
            for seed, own in groupby(rows, key=itemgetter("seed"))
        },
        perplexity=perplexity_of(losses, [row["tokens"] for row in rows]) if losses else None,
        measured={
            name: Interval(*mean_interval(values, LEVEL))
            for name, values in figures.items()
            if len(values) > 1
        },
        peak_entries=peak,
        holds_budget=True if budget is None else None if peak is None else peak <= budget,
        seconds_per_token=_seconds(rows),
        outcomes=outcomes,
        figures=figures,
        losses=losses,
        drafts=drafts,
        until_rejected=fmean(until_rejected) if until_rejected else None,
    )


def pooled(found: Sequence[TaskSummary]) -> dict[tuple[str, str | None], list[Point]]:
    """Return the points of tasks that one sweep has, by method and budget as the sweep states it.

    Points that were refused on a task are left out; ValueError if all were.
    """
    texts: dict[int | None, str]
    texts = {entries: text for text, entries in found[0].budgets.items()}
    points = {
        (first.method, text): [each.point(first.method, text) for each in found]
        for first in (*found[0].points, *found[0].controls)
        for text in [texts.get(first.budget)]
    }
    ran = {at: own for at, own in points.items() if all(each.refusal is None for each in own)}
    if not ran:
        raise ValueError("no method ran on every task")
    return ran


@dataclass(frozen=True, kw_only=True)
class Joined(HeldRow):
    """One method at one budget, as the sweep states it, over the problems of several tasks."""

    interval: Interval
    """Share solved, with Wilson's interval."""
    outcomes: tuple[bool, ...] = field(repr=False)


def joined(points: Mapping[tuple[str, str | None], Sequence[Point]]) -> list[Joined]:
    """Join the outcomes of `pooled` points."""
    found = []
    for (method, budget), own in points.items():
        outcomes = tuple(outcome for each in own for outcome in each.outcomes)
        held = all(each.holds_budget for each in own)
        after = all_of(each.after_eviction for each in own)
        figures = {"interval": _share(outcomes)["interval"], "outcomes": outcomes}
        known = {"method": method, "budget": budget, "holds_budget": held}
        found.append(Joined(**known, after_eviction=after, **figures))
    return found


def _after(method: str, rows: Sequence[Found], answers: bool) -> After | None:
    """Sum up what was counted; an answer that ends at its first error counts as a whole."""
    counts = [row["after_eviction"] for row in rows if row.get("after_eviction") is not None]
    if not counts or not (evicts(method) or method == ORACLE):
        return None
    if answers:
        return After(sum(map(bool, counts)), len(counts), "answers")
    return After(sum(counts), sum(row["tokens"] for row in rows), "tokens")


def _share(outcomes: Sequence[bool]) -> dict[str, Any]:
    if not outcomes:
        return {}
    share = fmean(outcomes)
    interval = Interval(share, *wilson(sum(outcomes), len(outcomes), LEVEL))
    return {"solved": share, "interval": interval}


def _seconds(rows: Sequence[Found]) -> Interval | None:
    """Return the seconds of a token with their range over the jobs, if there are several."""
    batches = {row["job"]: row["seconds_per_token"] for row in rows}.values()
    if len(batches) < 2 or None in batches:
        return None
    return Interval(fmean(batches), min(batches), max(batches))


def against_full(points: Sequence[Point]) -> list[Point]:
    """Compare the losses with those of the full cache, if they are there."""
    full = next((each for each in points if each.method == FULL), None)

    def compared(point: Point) -> Point:
        if full is None or full.perplexity is None or point.perplexity is None:
            return point
        gap, nats = point.perplexity - full.perplexity, None
        if point is not full and len(point.losses) > 1:
            nats = Interval(*paired_difference(full.losses, point.losses, LEVEL))
        return replace(point, gap=gap, nats=nats)

    return list(map(compared, points))


def plain(point: Point) -> dict[str, Any]:
    """Return what was found at one point as plain data; the figures are means."""
    share, nbytes, nats = point.interval, point.mean("nbytes"), point.nats
    seconds, after = point.seconds_per_token, point.after_eviction
    return {
        "task": point.task,
        "spec": point.method,
        "budget": point.budget,
        "holds_budget": point.holds_budget,
        "problems": point.problems,
        "refusal": point.refusal,
        "failed": point.failed,
        "after_eviction": None if after is None else after.count,
        "after_eviction_of": None if after is None else f"{after.of} {after.unit}",
        "accuracy": point.solved,
        "accuracy_low": None if share is None else share.low,
        "accuracy_high": None if share is None else share.high,
        "perplexity": point.perplexity,
        "gap": point.gap,
        "accepted": fmean(point.drafts) if point.drafts else None,
        "until_rejected": point.until_rejected,
        "nats": None if nats is None else nats.mean,
        "nats_low": None if nats is None else nats.low,
        "nats_high": None if nats is None else nats.high,
        **{name: point.mean(name) for name in MEASURED if name != "nbytes"},
        "kilobytes": None if nbytes is None else nbytes / 1024,
        "milliseconds_per_token": None if seconds is None else 1000 * seconds.mean,
        "milliseconds_fastest": None if seconds is None else 1000 * seconds.low,
        "milliseconds_slowest": None if seconds is None else 1000 * seconds.high,
    }
