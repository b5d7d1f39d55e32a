"""Compares methods on one task: a sweep that is run at once and kept in memory."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from kvlab.fast.lab.evaluate.backends import load_backend
from kvlab.fast.lab.evaluate.tasks import Rated, find_task
from kvlab.fast.lab.points import ORACLE, built, check_any
from kvlab.fast.lab.steps import Steps, kept_steps
from kvlab.fast.lab.sweep.design import Sweep
from kvlab.fast.lab.sweep.jobs import (
    Engine,
    Failure,
    Result,
    failed_results,
    in_processes,
    in_this_process,
    place_of,
)
from kvlab.fast.lab.sweep.plan import Job, Plan, make_plan
from kvlab.fast.lab.sweep.summary import Point, Results, against_full, point_of
from kvlab.fast.lab.tables import Layout, layout
from kvlab.fast.lab.terminal import Report

Tell = Callable[[Point], None]


def layout_of(sweep: Sweep) -> Layout:
    """Return what a comparison shows; a single batch has no time, as that had no spread."""
    part, known = sweep.parts[0], layout("compare")
    batches = part.problems * len(part.seeds) > part.batch
    return known if batches else replace(known, columns=known.columns[:-1])


def compare(
    sweep: Sweep, workers: int = 0, report: Report | None = None, tell: Tell | None = None
) -> Results:
    """Run a sweep of one model and one task as `run_in_memory`; by default measure all problems."""
    part, *others = sweep.parts
    if others or len(part.models) > 1:
        raise ValueError(
            f"models = {sweep.models} and tasks = {sweep.tasks} must be one model and one task"
        )
    sweep = replace(sweep, measured=sweep.measured or sweep.problems)
    results = run_in_memory(sweep, workers, report, tell)
    check_any(results.summary.points)
    return results


def run_in_memory(
    sweep: Sweep,
    workers: int = 0,
    report: Report | None = None,
    tell: Tell | None = None,
) -> Results:
    """Do all jobs of a sweep, point by point, and keep what they find.

    ``workers`` are processes of one thread; 0 computes in this process, or in as many as the sweep
    names devices, if these are several. ``tell`` is called with each point as soon as it is
    complete, task by task, but not with controls that were added.
    """
    workers = workers or sweep.workers
    plan = make_plan(sweep)
    if ORACLE not in sweep.methods:
        places = plan.parts()
        check_any([built(*at) for model, part in places for at in plan.points(model, part.task)])
    backend, last = None, {job.model: job for job in plan.jobs()}
    for model in reversed(plan.fingerprints):  # so that errors come before processes are started
        if workers and plan.device != "cpu":
            break  # what this process had loaded would take a worker's place on the GPU
        backend = load_backend(*place_of(last[model]))
        dtypes = {**plan.dtypes, model: backend.dtype}
        plan = replace(plan, device=backend.device, dtypes=dtypes)
    engine = partial(in_this_process, backend=backend)
    if workers:
        engine, backend = partial(in_processes, workers=workers), None
    jobs = list(plan.jobs())
    wanted = {part.task: part.problems * len(part.seeds) for part in sweep.parts}
    if tell is not None:
        order = {at: number for number, at in enumerate(_order(plan))}
        jobs.sort(key=lambda job: order[job.point])
    found: dict[tuple, list[Result]] = defaultdict(list)
    first: dict[tuple[str, str], Point] = {}
    with kept_steps("jobs", jobs=[job.id for job in jobs]) as steps:
        for done, (job, made) in enumerate(_do(jobs, engine, steps), start=1):
            own = found[job.point]
            own += made
            if report is not None:
                report(done, len(jobs), job.label)
            if tell is not None and job.method in sweep.methods and len(own) == wanted[job.task]:
                point = point_of(job.task, job.method, job.budget, own, wanted[job.task])
                yardstick = first.setdefault((job.model, job.task), point)
                tell(against_full([yardstick, point])[-1])
    return Results(plan, list(chain.from_iterable(found.values())))


def _do(jobs: Sequence[Job], engine: Engine, steps: Steps) -> Iterator[tuple[Job, list[Result]]]:
    """Yield jobs with their results, first those from before the command was stopped."""
    yield from ((job, steps.found[job.id]) for job in jobs if job.id in steps.found)
    missing = [job for job in jobs if job.id not in steps.found]
    for job, made in engine(missing) if missing else ():
        if isinstance(made, Failure):
            yield job, failed_results(job, made)
        else:
            steps.keep(job.id, made)
            yield job, made


def _order(plan: Plan) -> Iterator[tuple[str, str, str, int | None]]:
    """Yield model, task, method and budget; what rates a text begins with the full cache."""
    for model, part in plan.parts():
        points = list(plan.points(model, part.task))
        if not isinstance(find_task(part.task), Rated):
            points.sort(key=lambda point: point[1] is None)
        yield from ((model, part.task, *point) for point in points)
