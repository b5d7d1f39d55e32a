"""Runs what is missing of a sweep, and remembers how it was run.

The directory of a sweep holds ``plan.json``, the data set ``results/`` and, after `report`, the
report. ``plan.json`` is what it takes to run the sweep again: the sweep itself, the budgets in
entries, and where and with what it was run last. The data set holds one Parquet file per job. A
file appears under its name only when it is complete, so a process can be killed at any time, and a
job that was done twice leaves the same rows.
"""

import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from kvlab.fast.lab.files import clear_unfinished, folder_of, write_completely, write_text
from kvlab.fast.lab.steps import versions
from kvlab.fast.lab.sweep.design import make_sweep, to_plain
from kvlab.fast.lab.sweep.jobs import Engine, Failure, Result, in_processes, in_this_process
from kvlab.fast.lab.sweep.plan import Job, Plan
from kvlab.fast.lab.sweep.summary import Results
from kvlab.fast.lab.terminal import Report
from kvlab.reference.checks import check_at_least, check_choice
from kvlab.reference.methods import UnknownMethodError, discover
from kvlab.reference.outside import OUTSIDE, named

PLAN, RESULTS, FAILURES = "plan.json", "results", "failures"
PACKAGES = ("kvlab", "torch", "transformers", "triton", "numpy", "tokenizers", "pyarrow", "ray")
ENGINES = ("local", "ray")


COLUMNS = {str: pa.string(), bool: pa.bool_(), int: pa.int32(), float: pa.float32()}
WIDE = {"seed": pa.int64(), **dict.fromkeys(("loss", "accepted", "nbytes"), pa.float64())}
SCHEMA = pa.schema(
    [
        (name, WIDE.get(name) or COLUMNS[(get_args(kind) or (kind,))[0]])
        for name, kind in get_type_hints(Result).items()
        if name != "failed"
    ]
)
"""A column for every field of a `Result`."""

ADDED = (
    *("loss", "accepted", "until_rejected", "tokens", "after_eviction"),
    *("steps", "steps_after_eviction", "written"),
)
"""Columns that older results have not."""

COMPACTED = "results.parquet"


def write_rows(directory: Path, name: str, rows: Sequence[Result]) -> None:
    """Add a file of results, ``{job}.parquet``, to the data set of a sweep's directory."""
    with write_completely(directory / RESULTS / name) as file:
        table = pa.Table.from_pylist(list(map(vars, rows)), schema=SCHEMA)
        pq.write_table(table, file, compression="zstd")


def read_rows(directory: Path) -> list[Result]:
    """Return the results of a sweep's directory, each once; ValueError if a file is damaged."""
    found: dict[tuple[str, int], Result] = {}
    for path in sorted((directory / RESULTS).glob("*.parquet")):
        try:
            table = pq.read_table(path)
            for name in ADDED:
                if name not in table.column_names:
                    table = table.append_column(name, pa.nulls(len(table), SCHEMA.field(name).type))
            rows = table.select(SCHEMA.names).cast(SCHEMA).to_pylist()
        except (pa.ArrowInvalid, pa.ArrowKeyError, KeyError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{path} holds no results of a sweep ({reason}); delete it, and run the sweep again"
            ) from None
        found |= {(row["job"], row["problem"]): Result(**row) for row in rows}
    return list(found.values())


def _compact(directory: Path) -> None:
    """Put all rows into one file, and remove the others; loses nothing if it is killed."""
    old = [*(directory / RESULTS).glob("*.parquet")]
    write_rows(directory, COMPACTED, read_rows(directory))
    for path in old:
        if path.name != COMPACTED:
            path.unlink()


@dataclass(frozen=True)
class Ran:
    """What a call of `run_sweep` did: jobs done by it, of all jobs, and what failed."""

    done: int
    total: int
    failures: tuple[tuple[Job, Failure], ...]


def choose_engine(name: str, workers: int | None = None, gpus: float | None = None) -> Engine:
    """Return one of `ENGINES`.

    ``workers`` None works in this process, or with as many as fit the cluster; ``gpus``, per worker
    of the Ray engine, None takes 1 if the cluster has any.
    """
    check_choice(ENGINES, engine=name)
    check_at_least(1, workers=workers)
    if name == "local":
        if gpus is not None:
            raise ValueError("gpus can only be given with engine = 'ray'")
        return in_this_process if workers is None else partial(in_processes, workers=workers)
    check_at_least(0, gpus=gpus)
    from kvlab.fast.lab.sweep.cluster import on_cluster

    return partial(on_cluster, workers=workers, gpus=gpus)


def run_sweep(
    plan: Plan,
    directory: Path,
    engine: Engine,
    report: Report = lambda done, total, what: None,
    compact: bool = False,
) -> Ran:
    """Do the jobs that are missing; every result is stored at once, those of other jobs stay.

    ``report`` is called before the first job and after each. ``compact`` puts the results into one
    file in the end. ValueError if another process is at work there, or a file is damaged.
    """
    failures = []
    with _alone_in(directory):
        for each in (directory, directory / RESULTS):
            clear_unfinished(each)
        _write_plan(plan, directory)
        missing = Results(plan, read_rows(directory)).missing()
        total = sum(1 for _ in plan.jobs())
        finished = total - len(missing)
        report(finished, total, "starting")
        if missing:
            with closing(engine(missing)) as results:  # type: ignore[type-var]
                for job, found in results:
                    if isinstance(found, Failure):
                        failures.append((job, found))
                        text = f"{job}\n\n{found.trace}\n{found.reason}\n"
                        write_text(directory / FAILURES / f"{job.id}.txt", text)
                    else:
                        write_rows(directory, f"{job.id}.parquet", found)
                        finished += 1
                    report(finished, total, job.label)
        if compact and not failures:
            _compact(directory)
    return Ran(len(missing) - len(failures), total, tuple(failures))


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Refuse to work where another process works; the lock of a killed process is gone with it.

    The file of the lock is removed while it is locked: who has opened it by then is refused, or
    finds out that it is gone.
    """
    lock = directory / ".lock"
    try:
        with folder_of(lock), FileLock(lock, timeout=0):
            try:
                yield
            finally:
                with suppress(PermissionError):  # Windows removes no open file
                    lock.unlink(missing_ok=True)
    except Timeout:
        raise ValueError(f"out = {directory} is in use by another sweep") from None


def _write_plan(plan: Plan, directory: Path) -> None:
    content = {
        "plan": {**asdict(plan), "sweep": to_plain(plan.sweep)},
        "run": {
            OUTSIDE: os.pathsep.join(named()) if plan.outside else None,
            "command": shlex.join(["kvlab", *sys.argv[1:]]),
            "versions": versions(*PACKAGES),
            "machine": platform.platform(),
        },
    }
    with write_completely(directory / PLAN) as file:
        file.write((json.dumps(content, indent=1) + "\n").encode())


@dataclass(frozen=True)
class Stored(Results):
    """A sweep as its directory holds it."""

    directory: Path
    run: Mapping[str, Any]
    """Command, versions and machine of the last run, and what `OUTSIDE` named."""

    def failure(self, job: Job) -> str | None:
        path = self.directory / FAILURES / f"{job.id}.txt"
        return path.read_text(encoding="utf-8").splitlines()[-1] if path.is_file() else None


def where_from(directory: Path) -> str:
    """Say, as the end of a message, what the last run in a directory had from outside."""
    try:
        run = json.loads((directory / PLAN).read_text(encoding="utf-8"))["run"]
    except (OSError, ValueError, KeyError):
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
        written = dict(content["plan"])
        plan, run = Plan(**{**written, "sweep": make_sweep(written["sweep"])}), content["run"]
    except UnknownMethodError as error:
        raise ValueError(f"directory = {directory}: {error}{where_from(directory)}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error}; run the sweep again") from None
    asked = {job.id for job in plan.jobs()}
    rows = [row for row in read_rows(directory) if row.job in asked]
    return Stored(plan, rows, directory, run)
