"""Runs what is missing of a sweep, and remembers how it was run.

The directory of a sweep holds ``plan.json``, the data set ``results/`` and, after `report`, the
report. ``plan.json`` is what it takes to run the sweep again: the sweep itself, the budgets in
entries, and where and with what it was run last.
"""

import json
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kvlab.fast.lab.benchmarks.machine import versions
from kvlab.fast.lab.files import clear_unfinished, write_completely, write_text
from kvlab.fast.lab.sweep.dataset import Dataset, plain_text
from kvlab.fast.lab.sweep.engines import Engine, Failure, LocalEngine
from kvlab.fast.lab.sweep.plan import Job, Plan, make_sweep
from kvlab.fast.lab.sweep.summary import Results
from kvlab.fast.lab.terminal import Report
from kvlab.reference.checks import check_at_least, check_choice

PLAN, RESULTS, FAILURES = "plan.json", "results", "failures"
PACKAGES = ("kvlab", "torch", "transformers", "triton", "numpy", "tokenizers", "pyarrow", "ray")
ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Ran:
    """What a call of `run_sweep` did."""

    done: int
    """Jobs done by this call."""
    total: int
    failures: tuple[tuple[Job, Failure], ...]


@dataclass(frozen=True)
class Stored(Results):
    """A sweep as its directory holds it."""

    plan: Plan
    data: Dataset
    run: Mapping[str, Any]
    """Command, versions and machine of the last run."""

    @cached_property
    def jobs(self) -> Mapping[str, Job]:
        """The jobs by id."""
        return {job.id: job for job in self.plan.jobs()}

    def rows(self) -> list[dict[str, Any]]:
        return plain_text(self.data.read(self.jobs)).to_pylist()

    def missing(self) -> list[Job]:
        done = self.data.done()
        return [job for name, job in self.jobs.items() if name not in done]


def count_jobs(plan: Plan, directory: Path) -> tuple[int, int]:
    """Return the jobs of a sweep, and how many of them are missing in its directory."""
    ids = {job.id for job in plan.jobs()}
    return len(ids), len(ids - Dataset(directory / RESULTS).done())


def choose_engine(name: str, workers: int | None = None, gpus: float | None = None) -> Engine:
    """Return an engine.

    Args:
        name: one of `ENGINES`.
        workers: workers of the Ray engine; None takes as many as fit the cluster.
        gpus: per worker of the Ray engine; None takes 1 if the cluster has any.

    Raises:
        ValueError: if there is no such engine, or a number is not allowed.
        ConnectionError: if the cluster cannot be reached.
    """
    check_choice(ENGINES, engine=name)
    if name == "local":
        if workers is not None or gpus is not None:
            raise ValueError("workers and gpus can only be given with engine = 'ray'")
        return LocalEngine()
    if workers is not None:
        check_at_least(1, workers=workers)
    if gpus is not None and not 0 <= gpus < 1024:
        raise ValueError(f"gpus = {gpus} must be at least 0 and a number of devices")
    from kvlab.fast.lab.sweep.cluster import RayEngine

    return RayEngine(workers, gpus)


def run_sweep(
    plan: Plan,
    directory: Path,
    engine: Engine,
    report: Report = lambda done, total, what: None,
    compact: bool = False,
) -> Ran:
    """Do the jobs that are missing; every result is stored at once.

    Args:
        plan: the sweep.
        directory: directory of the sweep; results of other jobs in it are left alone.
        engine: who does the jobs.
        report: is called before the first job and after each.
        compact: when nothing is missing any more, put the results into one file.

    Raises:
        ValueError: if another process is at work on the directory, or a file in it is damaged.
    """
    data, failures = Dataset(directory / RESULTS), []
    with _alone_in(directory):
        for each in (directory, data.directory):
            clear_unfinished(each)
        write_plan(plan, directory)
        jobs, done = list(plan.jobs()), data.done()
        missing = [job for job in jobs if job.id not in done]
        finished = len(jobs) - len(missing)
        report(finished, len(jobs), "starting")
        if missing:
            with closing(engine.results(missing)) as results:  # type: ignore[type-var]
                for job, found in results:
                    if isinstance(found, Failure):
                        failures.append((job, found))
                        (directory / FAILURES).mkdir(exist_ok=True)
                        text = f"{job}\n\n{found.trace}\n{found.reason}\n"
                        write_text(directory / FAILURES / f"{job.id}.txt", text)
                    else:
                        data.write(job, found)
                        finished += 1
                    report(finished, len(jobs), job.label)
        if compact and not failures:
            data.compact()
    return Ran(len(missing) - len(failures), len(jobs), tuple(failures))


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Refuse to work where another process works; the lock of a killed process is gone with it."""
    try:
        with FileLock(directory / ".lock", timeout=0):
            yield
    except Timeout:
        raise ValueError(f"out = {directory} is in use by another sweep") from None


def write_plan(plan: Plan, directory: Path) -> None:
    """Write the plan and the circumstances of this run."""
    content = {
        "plan": plan.to_json(),
        "run": {
            "command": shlex.join(["kvlab", *sys.argv[1:]]),
            "versions": versions(*PACKAGES),
            "machine": platform.platform(),
        },
    }
    with write_completely(directory / PLAN) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())


def read_stored(directory: Path) -> Stored:
    """Open the directory of a sweep.

    Raises:
        FileNotFoundError: if no sweep was run there.
        ValueError: if its plan is damaged.
    """
    path = directory / PLAN
    if not path.is_file():
        raise FileNotFoundError(f"directory = {directory} holds no sweep: {path} does not exist")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        written = dict(content["plan"])
        plan = Plan(**{**written, "sweep": make_sweep(written["sweep"])})
        return Stored(plan, Dataset(directory / RESULTS), content["run"])
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error}; run the sweep again") from None
