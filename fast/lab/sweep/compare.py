"""Compares methods on one task: a sweep that is run at once, and kept in memory."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvlab.fast.lab.evaluate.backends import load_backend
from kvlab.fast.lab.points import check_some_ran
from kvlab.fast.lab.sweep.engines import Failure, LocalEngine, ProcessEngine
from kvlab.fast.lab.sweep.plan import Job, Plan, Sweep, make_plan
from kvlab.fast.lab.sweep.summary import Point, Results, TaskSummary, point_of, summarise
from kvlab.fast.lab.sweep.worker import Found, rows_of
from kvlab.fast.lab.tables import Column, Specification, Table, percent_interval, tabulate
from kvlab.fast.lab.terminal import Report
from kvlab.fast.models import model_location

DEFAULT_BUDGETS = ("70%", "85%")

ENGINES = {
    "fast": "PyTorch, all problems of a batch at once",
    "reference": "NumPy, one problem after the other",
}


Tell = Callable[[Point], None]
"""Called with every point as soon as it is complete."""

COLUMNS = (
    Column("method", cell_type=Specification),
    Column("solved (95 %)", "interval", lambda share: percent_interval(*vars(share).values())),
    Column("error", lambda point: point.mean("output_error"), ".3f"),
    Column("KL", lambda point: point.mean("kl"), ".3f"),
    Column("entries", lambda point: point.mean("entries"), ".0f"),
    Column("KiB", lambda point: point.mean("nbytes"), lambda nbytes: f"{nbytes / 1024:.0f}"),
    Column("bits", lambda point: point.mean("average_bits"), ".1f"),
    Column("ms", "seconds_per_token", lambda seconds: f"{1000 * seconds:.1f}"),
)
"""What the tables of a comparison say of a point."""


@dataclass(frozen=True)
class ResultsInMemory(Results):
    """The results of a sweep that was run at once; `summary.summarise` sums them up."""

    plan: Plan
    found: Sequence[tuple[Job, Sequence[Found]]]

    def rows(self) -> list[dict[str, Any]]:
        return [row for job, found in self.found for row in rows_of(job, found)]

    def missing(self) -> list[Job]:
        return []


@dataclass(frozen=True)
class Comparison:
    """What `compare` found."""

    sweep: Sweep
    summary: TaskSummary
    """Every method at every budget, with intervals."""
    memory: dict[str, list[float]]
    """KiB of keys and values after each token of the first problem, per label."""
    workers: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "settings": asdict(self.sweep),
            "mean_length": self.summary.mean_length,
            "budgets": self.summary.budgets,
            "rows": [_plain(point) for point in self.summary.points],
            "memory": self.memory,
            "seconds": self.seconds,
        }


def label(method: str, budget: int | None) -> str:
    """Name a method at a budget."""
    return method if budget is None else f"{method} · {budget}"


def compare(
    sweep: Sweep, workers: int = 0, report: Report | None = None, tell: Tell | None = None
) -> Comparison:
    """Sum up what every method does at every budget on every problem.

    Args:
        sweep: what to compare, on one model and one task; with ``measured`` 0, all problems are
            measured.
        workers: processes, each of one thread; 0 computes in this process.
        report: is called after each job.
        tell: see `run_in_memory`.

    Raises:
        ValueError: if there is more than one model or task, or no method could run.
        FileNotFoundError: if the model directory is incomplete.
    """
    started = time.perf_counter()
    if len(sweep.models) > 1 or len(sweep.tasks) > 1:
        raise ValueError(
            f"models = {sweep.models} and tasks = {sweep.tasks} must be one model and one task"
        )
    sweep = replace(sweep, measured=sweep.measured or sweep.problems)
    results = run_in_memory(sweep, workers, report, tell)
    (summary,) = summarise(results)
    check_some_ran(summary.points)
    memory = {
        label(job.method, job.budget): [nbytes / 1024 for nbytes in found[0].nbytes_over_tokens]
        for job, found in results.found
        if job.first == 0 and job.seed == sweep.seeds[0] and found[0].nbytes_over_tokens
    }
    return Comparison(sweep, summary, memory, workers, time.perf_counter() - started)


def run_in_memory(
    sweep: Sweep, workers: int = 0, report: Report | None = None, tell: Tell | None = None
) -> ResultsInMemory:
    """Do all jobs of a sweep, and keep what they find.

    Args:
        sweep: what to run.
        workers: processes, each of one thread; 0 computes in this process.
        report: is called after each job.
        tell: is called with each point of the first model and task as soon as it is complete. The
            jobs of a point then follow each other, and methods without a budget come last.

    Raises:
        ValueError: if a budget is not allowed.
        FileNotFoundError: if a model directory is incomplete.
        RuntimeError: if a job fails.
    """
    plan = make_plan(sweep)
    for model in sweep.models:  # so that errors come before processes are started
        load_backend(sweep.backend, model_location(model))
    engine = ProcessEngine(workers) if workers else LocalEngine()
    jobs, found = list(plan.jobs()), []
    if tell is not None:
        order = list(plan.points(sweep.models[0], sweep.tasks[0]))
        jobs.sort(key=lambda job: (job.budget is None, order.index((job.method, job.budget))))
    rows: dict[tuple[str, int | None], list[dict[str, Any]]] = defaultdict(list)
    wanted = sweep.problems * len(sweep.seeds)
    for job, made in engine.results(jobs):
        if isinstance(made, Failure):
            raise RuntimeError(f"{job.label} failed\n\n{made.trace}")
        found.append((job, made))
        if report is not None:
            report(len(found), len(jobs), job.label)
        if tell is not None:
            own = rows[job.method, job.budget]
            own += rows_of(job, made)
            if len(own) == wanted:
                tell(point_of(job.method, job.budget, own, wanted))
    return ResultsInMemory(plan, found)


def _plain(point: Point) -> dict[str, Any]:
    """Return what was found at one point as plain data; the figures are means."""
    share, seconds, nbytes = point.interval, point.seconds_per_token, point.mean("nbytes")
    names = ("output_error", "kl", "agreement", "entries", "average_bits", "payload_bits")
    return {
        "spec": point.method,
        "budget": point.budget,
        "problems": point.problems,
        "refusal": point.refusal,
        "accuracy": point.solved,
        "accuracy_low": None if share is None else share.low,
        "accuracy_high": None if share is None else share.high,
        **{name: point.mean(name) for name in names},
        "kilobytes": None if nbytes is None else nbytes / 1024,
        "milliseconds_per_token": None if seconds is None else 1000 * seconds,
    }


def tables(comparison: Comparison) -> list[tuple[str, Table]]:
    """Return a title and a table for the methods with a rule of their own, and for each budget."""
    titles: dict[int | None, str] = {None: "memory by the method's own rule"}
    for text, entries in comparison.summary.budgets.items():
        percent = text.endswith("%")
        titles[entries] = f"budget {text} = {entries} entries" if percent else f"budget {entries}"
    found = []
    for budget, title in titles.items():
        points = [point for point in comparison.summary.points if point.budget == budget]
        if points:
            found.append((title, tabulate(points, COLUMNS)))
    return found


def caption(sweep: Sweep) -> str:
    """Explain the columns."""
    count = sweep.measured
    few = "all problems" if count == sweep.problems else f"the first {count} problems"
    return (
        "solved: whole solution right, with 95 % interval · error: attention output against "
        "everything seen, L2 per head · KL in nats from the full cache · entries, KiB: peak · "
        "bits: stored per element of the full cache, scales included · from error to bits: on "
        f"{'the first problem' if count == 1 else few} · ms: per token, {ENGINES[sweep.backend]}"
    )
