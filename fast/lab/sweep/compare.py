"""Compares methods on one task: a sweep that is run at once and kept in memory."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

from kvlab.fast.lab.evaluate.backends import load_backend
from kvlab.fast.lab.evaluate.tasks import rates_texts
from kvlab.fast.lab.loop import kept, run_all
from kvlab.fast.lab.points import ORACLE, built, check_any
from kvlab.fast.lab.sweep.design import Sweep
from kvlab.fast.lab.sweep.jobs import (
    Engine,
    Failure,
    Result,
    in_processes,
    in_this_process,
    lasts,
)
from kvlab.fast.lab.sweep.kept import place_of
from kvlab.fast.lab.sweep.plan import Job, Plan, make_plan
from kvlab.fast.lab.sweep.summary import Point, Results, against_full, point_of
from kvlab.fast.lab.tables import Layout, layout
from kvlab.fast.lab.terminal import OnProgress

Tell = Callable[[Point], None]


def layout_of(sweep: Sweep) -> Layout:
    """Return what a comparison shows; a single batch has no time, as that had no spread."""
    part, known = sweep.parts[0], layout("compare")
    if part.problems * len(part.seeds) > part.batch:
        return known
    timeless = [each for each in known.columns if each.name != "ms"]
    return replace(known, columns=timeless)


def compare(
    sweep: Sweep,
    workers: int = 0,
    progress: OnProgress = lambda done, total, what: None,
    tell: Tell | None = None,
) -> Results:
    """Run a sweep of one model and one task as `run_in_memory`; ValueError without figures."""
    part, *others = sweep.parts
    if others or len(part.models) > 1:
        raise ValueError(
            f"models = {sweep.models} and tasks = {sweep.tasks} must be one model and one task"
        )
    results = run_in_memory(sweep, workers, progress, tell)
    check_any(results.summary.points)
    return results


def run_in_memory(
    sweep: Sweep,
    workers: int = 0,
    progress: OnProgress = lambda done, total, what: None,
    tell: Tell | None = None,
) -> Results:
    """Do all jobs of a sweep, point by point, and keep what they find.

    ``workers`` are processes of one thread; 0 computes in this process, or in as many as the sweep
    names devices, if these are several. ``tell`` is called with each point as soon as it is
    complete, task by task, but not with controls that were added.
    """
    plan, engine = _prepared(make_plan(sweep), workers or sweep.workers)
    jobs, points = list(plan.jobs()), _Points(plan, tell)
    if tell is not None:
        order = {at: number for number, at in enumerate(_order(plan))}
        jobs.sort(key=lambda job: order[job.point])
    with kept("jobs", jobs=[job.id for job in jobs]) as store:
        run_all(jobs, store, engine, list[Result], progress, points.add, lasts)
    return Results(plan, list(chain.from_iterable(points.found.values())), points.failures)


def _prepared(plan: Plan, workers: int) -> tuple[Plan, Engine]:
    """Load the models, so that errors come before processes are started; note what was loaded.

    What this process has loaded would take a worker's place on a GPU, so workers load alone there.
    """
    sweep, loaded = plan.sweep, (None, None)
    if ORACLE not in sweep.methods:
        check_any([built(*at) for each in plan.subjects for at in plan.points(each)])
    if not workers or plan.device == "cpu":
        jobs = {job.model: job for job in plan.jobs()}
        for model in reversed(plan.models):  # the first model's jobs come first: it stays loaded
            place = place_of(jobs[model])
            loaded = place, (backend := load_backend(*place))
            subjects = tuple(
                replace(each, dtype=backend.dtype) if each.model == model else each
                for each in plan.subjects
            )
            plan = replace(plan, device=backend.device, subjects=subjects)
    if workers:
        return plan, partial(in_processes, workers=workers)
    return plan, partial(in_this_process, loaded=loaded)


class _Points:
    """The results of every point, which is told as soon as it is complete."""

    def __init__(self, plan: Plan, tell: Tell | None) -> None:
        self.methods, self.tell = plan.sweep.methods, tell
        parts = [(each.model, each.part) for each in plan.subjects]
        self.wanted = {(m, part.task): part.problems * len(part.seeds) for m, part in parts}
        self.found: dict[tuple, list[Result]] = defaultdict(list)
        self.asked, self.given_up, self.failures = Counter[tuple](), dict[tuple, str](), {}
        self.first: dict[tuple[str, str], Point] = {}
        """The first of every model and task: the full cache's where texts are rated (`_order`), and
        else any, as nothing is held against it then (`against_full`)."""

    def add(self, job: Job, outcome: list[Result] | Failure) -> None:
        """Take what a job has found, or why it was given up."""
        where = job.model, job.task
        if isinstance(outcome, Failure):
            self.failures[job.id] = self.given_up[job.point] = outcome.reason
        else:
            self.found[job.point] += outcome
        self.asked[job.point] += job.count
        wanted = self.wanted[where]
        if self.tell is None or job.method not in self.methods or self.asked[job.point] < wanted:
            return
        own, failure = self.found[job.point], self.given_up.get(job.point)
        point = point_of(job.point[1:], own, wanted, failure)
        self.tell(against_full([self.first.setdefault(where, point), point])[-1])


def _order(plan: Plan) -> Iterator[tuple[str, str, str, int | None]]:
    """Yield model, task, method and budget; what rates a text begins with the full cache."""
    for each in plan.subjects:
        points = list(plan.points(each))
        if not rates_texts(each.part.task):
            points.sort(key=lambda point: point[1] is None)
        yield from ((each.model, each.part.task, *point) for point in points)
