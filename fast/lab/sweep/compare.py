"""Compares methods on one task: a sweep that is run at once and kept in memory."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from kvlab.fast.lab.evaluate.backends import load_backend
from kvlab.fast.lab.points import ORACLE, built, check_any, marked_budget
from kvlab.fast.lab.sweep.jobs import (
    Failure,
    Found,
    failed_rows,
    in_processes,
    in_this_process,
)
from kvlab.fast.lab.sweep.plan import Sweep, make_plan
from kvlab.fast.lab.sweep.summary import Point, Results, TaskSummary, plain, point_of, summarise
from kvlab.fast.lab.tables import Column
from kvlab.fast.lab.terminal import Report
from kvlab.fast.models import model_location

Tell = Callable[[Point], None]
"""Called with every point as soon as it is complete."""

COLUMNS = (
    Column("method"),
    Column("budget", lambda point: marked_budget(point) or None, width=8),
    Column("solved, %", "interval", lambda share: share.percent(0), width=16),
    Column("error", lambda point: point.mean("output_error"), ".3f"),
    Column("KL", lambda point: point.mean("kl"), ".3f"),
    Column("entries", lambda point: point.mean("entries"), ".0f"),
    Column("KiB", lambda point: point.mean("nbytes"), lambda nbytes: f"{nbytes / 1024:.0f}"),
    Column("bits", lambda point: point.mean("average_bits"), ".1f"),
    Column("ms", "seconds_per_token", lambda seconds: seconds.written(1, scale=1000), width=18),
)
"""What a comparison says of a point."""


def columns_of(sweep: Sweep) -> tuple[Column, ...]:
    """Return the columns of a comparison; a single batch has no time, as that had no spread."""
    part = sweep.parts[0]
    return COLUMNS if part.problems * len(part.seeds) > part.batch else COLUMNS[:-1]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found."""

    sweep: Sweep
    summary: TaskSummary
    """Every method at every budget, with intervals."""
    memory: dict[str, list[float]]
    """KiB of keys and values after each token of the first problem, per method and budget."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "settings": asdict(self.sweep),
            "mean_length": self.summary.mean_length,
            "budgets": self.summary.budgets,
            "rows": [plain(point) for point in self.summary.points],
            "controls": [plain(point) for point in self.summary.controls],
            "gains": [asdict(each) for each in self.summary.gains],
            "memory": self.memory,
            "seconds": self.seconds,
        }


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
    part, *others = sweep.parts
    if others or len(part.models) > 1:
        raise ValueError(
            f"models = {sweep.models} and tasks = {sweep.tasks} must be one model and one task"
        )
    sweep = replace(sweep, measured=sweep.measured or sweep.problems)
    results = run_in_memory(sweep, workers, report, tell)
    (summary,) = summarise(results)
    check_any(summary.points)
    memory = {
        row["method"] if row["budget"] is None else f"{row['method']} · {row['budget']}": [
            nbytes / 1024 for nbytes in row["nbytes_over_tokens"]
        ]
        for row in results.rows
        if (row["problem"], row["seed"]) == (0, sweep.seeds[0]) and "nbytes_over_tokens" in row
    }
    return Comparison(sweep, summary, memory, time.perf_counter() - started)


def run_in_memory(
    sweep: Sweep, workers: int = 0, report: Report | None = None, tell: Tell | None = None
) -> Results:
    """Do all jobs of a sweep, point by point, and keep what they find.

    Args:
        sweep: what to run.
        workers: processes, each of one thread; 0 computes in this process.
        report: is called after each job.
        tell: is called with each point of the first model and task as soon as it is complete, but
            not with controls that were added; methods without a budget come last.

    Raises:
        ValueError: if a budget is not allowed.
        FileNotFoundError: if a model directory is incomplete.
    """
    plan = make_plan(sweep)
    if ORACLE not in sweep.methods:
        places = [(model, part.task) for part in sweep.parts for model in part.models]
        check_any([built(*point) for place in places for point in plan.points(*place)])
    for model in plan.fingerprints:  # so that errors come before processes are started
        load_backend(sweep.backend, model_location(model, hub=sweep.backend == "fast"))
    engine = partial(in_processes, workers=workers) if workers else in_this_process
    jobs, part = list(plan.jobs()), sweep.parts[0]
    if tell is not None:
        order = list(plan.points(part.models[0], part.task))
        jobs.sort(key=lambda job: (job.budget is None, order.index((job.method, job.budget))))
    rows: list[Found] = []
    of_point: dict[tuple[str, int | None], list[Found]] = defaultdict(list)
    wanted = part.problems * len(part.seeds)
    for done, (job, made) in enumerate(engine(jobs), start=1):
        if isinstance(made, Failure):
            made = failed_rows(job, made)
        rows += made
        if report is not None:
            report(done, len(jobs), job.label)
        if tell is not None and job.method in sweep.methods:
            own = of_point[job.method, job.budget]
            own += made
            if len(own) == wanted:
                tell(point_of(job.method, job.budget, own, wanted))
    return Results(plan, rows)
