"""Runs what is missing of a sweep, and remembers how it was run.

The directory of a sweep holds ``plan.json``, the rows in ``results.sqlite`` and, after `report`,
the report. ``plan.json`` is what it takes to run the sweep again: the sweep itself, the budgets in
entries, and where and with what it was run last. Several processes may work in one directory; each
job is done by one of them. A sweep that was published, or run by an older kvlab, has its rows in
``results/*.parquet``; they count as well.
"""

import json
import os
import platform
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from kvlab.fast.lab.files import folder_of, write_text
from kvlab.fast.lab.loop import run_all, tell_of_older
from kvlab.fast.lab.provenance import versions
from kvlab.fast.lab.store import Store, read_as
from kvlab.fast.lab.sweep.design import Sweep, only
from kvlab.fast.lab.sweep.jobs import Engine, Failure, Result, in_processes, in_this_process, lasts
from kvlab.fast.lab.sweep.plan import Job, Plan
from kvlab.fast.lab.sweep.summary import Results
from kvlab.fast.lab.terminal import OnProgress
from kvlab.reference.checks import check_at_least, check_choice
from kvlab.reference.methods import UnknownMethodError, discover
from kvlab.reference.outside import OUTSIDE, named

PLAN, RESULTS, FAILURES, PARQUET = "plan.json", "results.sqlite", "failures", "results/*.parquet"
PACKAGES = ("kvlab", "torch", "transformers", "triton", "numpy", "tokenizers", "pyarrow", "ray")
ENGINES = ("local", "ray")


def read_published(directory: Path) -> Iterator[Result]:
    """Yield the results that were published, or made by an older kvlab: those in Parquet."""
    for path in sorted(directory.glob(PARQUET)):
        from kvlab.fast.lab.sweep.published import read_parquet  # needs pyarrow

        yield from read_parquet(path)


def read_rows(directory: Path, asked: Collection[str] | None = None) -> list[Result]:
    """Return the results in a directory, each once; an error names a damaged file.

    Rows in the store that are not of the jobs ``asked`` for, by their ids, are not read.
    """
    rows = [*read_published(directory)]
    if (path := directory / RESULTS).is_file():
        with closing(Store(path)) as store:
            for job, text in store.rows().items():
                if asked is None or job in asked:
                    rows += store.read(job, text, list[Result])
    return list({(row.job, row.problem): row for row in rows}.values())


@dataclass(frozen=True)
class Ran:
    """What a call of `run_sweep` did: jobs done meanwhile, of all that it was asked for."""

    done: int
    total: int
    failures: tuple[tuple[Job, Failure], ...]


def choose_engine(
    sweep: Sweep, name: str = "local", workers: int | None = None, gpus: float | None = None
) -> tuple[Engine, str | None]:
    """Return one of `ENGINES`, and what computes on its cluster; None: what this machine has.

    ``workers`` None takes one for each device that the sweep names, if these are several, and else
    this process, or as many as fit the cluster; ``gpus``, per worker of the Ray engine, None takes
    1 if the cluster has any.
    """
    check_choice(ENGINES, engine=name)
    check_at_least(1, workers=workers)
    check_at_least(0, gpus=gpus)
    if name == "ray" and sweep.workers:
        raise ValueError(f"device = {sweep.device} must be one: Ray shares out the devices")
    workers = workers or sweep.workers or None
    if sweep.parallel and workers:
        raise ValueError(f"workers = {workers} cannot be given: parallel takes all devices")
    if name == "local":
        if gpus is not None:
            raise ValueError("gpus can only be given with engine = 'ray'")
        return partial(in_processes, workers=workers) if workers else in_this_process, None
    from kvlab.fast.lab.sweep.cluster import device_of_workers, on_cluster

    engine = partial(on_cluster, workers=workers, gpus=gpus)
    return engine, device_of_workers(gpus, sweep.device) if sweep.backend == "fast" else None


def run_sweep(
    plan: Plan,
    directory: Path,
    engine: Engine,
    progress: OnProgress = lambda done, total, what: None,
    methods: Collection[str] | None = None,
) -> Ran:
    """Do the jobs that are missing; every result is stored at once, those of other jobs stay.

    Jobs that were published, or done by an older kvlab, are not done again; nor are those in the
    store, which the loop finds there. ``progress`` is called before the first job and after each,
    and knows nothing of those that were published. If ``methods`` is given, only their jobs and
    those of their controls are done; the plan stays whole. An OSError or ValueError names a file
    that is damaged, or an unknown method.
    """
    some = plan if methods is None else replace(plan, sweep=only(plan.sweep, methods))
    jobs, done, failures = list(some.jobs()), [], []
    tell_of_older(directory.glob("results/*.unfinished"))
    published = {row.job for row in read_published(directory)}
    left = [job for job in jobs if job.id not in published]
    with folder_of(directory / PLAN):
        _write_plan(plan, directory)
        with closing(Store(directory / RESULTS)) as store:
            before = store.items()

            def note(job: Job, outcome: list[Result] | Failure) -> None:
                """Write down why a job failed; what is written goes once the job is done."""
                path = directory / FAILURES / f"{job.id}.txt"
                if isinstance(outcome, Failure):
                    failures.append((job, outcome))
                    write_text(path, f"{job}\n\n{outcome.trace}\n{outcome.reason}\n")
                    return
                path.unlink(missing_ok=True)
                if job.id not in before:
                    done.append(job)

            run_all(left, store, engine, list[Result], progress, note, lasts)
    return Ran(len(done), len(jobs), tuple(failures))


def _write_plan(plan: Plan, directory: Path) -> None:
    run = {
        OUTSIDE: os.pathsep.join(named()) if plan.outside else None,
        "command": shlex.join(["kvlab", *sys.argv[1:]]),
        "versions": versions(*PACKAGES),
        "machine": platform.platform(),
    }
    content = {"plan": asdict(plan), "run": run}  # in full: what is usual may change
    write_text(directory / PLAN, json.dumps(content, indent=1) + "\n")


@dataclass(frozen=True)
class Stored(Results):
    """A sweep as its directory holds it.

    It adds where it lies, and how it was run last, to `Results`: the ``plan``, the ``rows`` found
    so far, and all that follows from them.
    """

    directory: Path = field(kw_only=True)
    run: Mapping[str, Any] = field(kw_only=True)
    """Command, versions and machine of the last run, and what `OUTSIDE` named."""


def where_from(directory: Path) -> str:
    """Say, as the end of a message, what the last run in a directory had from outside."""
    try:
        run = json.loads((directory / PLAN).read_text(encoding="utf-8"))["run"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f" (the last run had {OUTSIDE}={run[OUTSIDE]})" if run.get(OUTSIDE) else ""


def read_stored(directory: Path) -> Stored:
    """Read the directory of a sweep; ValueError if it is damaged, or a method is not at hand."""
    path = directory / PLAN
    if not path.is_file():
        raise FileNotFoundError(f"directory = {directory} holds no sweep: {path} does not exist")
    discover()  # so that what is wrong with methods from outside is not the plan's damage
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        plan, run = read_as(Plan, json.dumps(content["plan"])), content["run"]
    except UnknownMethodError as error:
        raise ValueError(f"directory = {directory}: {error}{where_from(directory)}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path} is damaged, or was written by an older kvlab ({error}); run the sweep again: "
            "what is done is not done twice"
        ) from None
    asked = {job.id for job in plan.jobs()}
    rows = [row for row in read_rows(directory, asked) if row.job in asked]
    written = {each.stem: each.read_text("utf-8") for each in (directory / FAILURES).glob("*.txt")}
    failures = {job: text.splitlines()[-1] for job, text in written.items() if text}
    return Stored(plan, rows, failures, directory=directory, run=run)
