"""Runs what is missing of a sweep, and remembers how it was run.

The directory of a sweep holds ``plan.json``, the data set ``results/`` and, after `report`, the
report. ``plan.json`` is what it takes to run the sweep again: the sweep itself, the budgets in
entries, and where and with what it was run last. The data set holds one Parquet file per job. A
file appears under its name only when it is complete, so a process can be killed at any time, and a
job that was done twice leaves the same rows.
"""

import json
import platform
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from kvlab.fast.lab.benchmarks.machine import versions
from kvlab.fast.lab.files import clear_unfinished, write_completely, write_text
from kvlab.fast.lab.sweep.plan import Job, Plan, make_sweep, to_plain
from kvlab.fast.lab.sweep.summary import MEASURED, Results
from kvlab.fast.lab.sweep.worker import Engine, Failure, Found, LocalEngine, rows_of
from kvlab.fast.lab.terminal import Report
from kvlab.reference.checks import check_at_least, check_choice

PLAN, RESULTS, FAILURES = "plan.json", "results", "failures"
PACKAGES = ("kvlab", "torch", "transformers", "triton", "numpy", "tokenizers", "pyarrow", "ray")
ENGINES = ("local", "ray")


# --- the data set --------------------------------------------------------------------------------

_CELL = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        ("job", _CELL),
        ("model", _CELL),
        ("task", _CELL),
        ("seed", pa.int64()),
        ("method", _CELL),
        ("budget", pa.int32()),
        ("problem", pa.int32()),
        ("prompt_tokens", pa.int32()),
        ("refusal", _CELL),
        ("solved", pa.bool_()),
        ("answer_correct", pa.bool_()),
        ("tokens", pa.int32()),
        *((name, pa.float64() if name == "nbytes" else pa.float32()) for name in MEASURED),
        ("seconds_per_token", pa.float32()),
    ]
)
ORDER = ("model", "task", "seed", "method", "budget", "problem", "job")

COMPACTED = "results.parquet"
"""The file that takes the place of many."""


class Dataset:
    """The results of a sweep, as far as there are any."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, job: Job, found: Sequence[Found]) -> None:
        """Add the rows of a job."""
        self.write_file(f"{job.id}.parquet", rows(job, found))

    def write_file(self, name: str, table: pa.Table) -> None:
        """Write a file of rows."""
        with write_completely(self.directory / name) as file:
            pq.write_table(table, file, compression="zstd")

    def done(self) -> set[str]:
        """Return the ids of the jobs whose rows are there."""
        found: set[str] = set()
        for path in self.files():
            found.update(self.read_file(path, ["job"])["job"].unique().to_pylist())
        return found

    def read(self, jobs: Iterable[str] | None = None) -> pa.Table:
        """Return the rows of some jobs, or all, each once and in one order."""
        tables = [self.read_file(path) for path in self.files()]
        table = pa.concat_tables([SCHEMA.empty_table(), *tables]).unify_dictionaries()
        if jobs is not None:
            table = table.filter(pc.field("job").cast(pa.string()).isin(sorted(jobs)))
        return _in_order(table)

    def compact(self) -> None:
        """Put all rows into one file, and remove the others; loses nothing if it is killed."""
        old = self.files()
        self.write_file(COMPACTED, self.read())
        for path in old:
            if path.name != COMPACTED:
                path.unlink()

    def files(self) -> list[Path]:
        """Return the complete files."""
        return sorted(self.directory.glob("*.parquet"))

    def read_file(self, path: Path, columns: list[str] | None = None) -> pa.Table:
        """Read one file.

        Raises:
            ValueError: if it is damaged, or holds something else.
        """
        try:
            table = pq.read_table(path, columns=columns)
            wanted = SCHEMA if columns is None else pa.schema([SCHEMA.field(c) for c in columns])
            return table.select(wanted.names).cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowKeyError, KeyError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{path} holds no results of a sweep ({reason}); delete it, and run the sweep again"
            ) from None


def rows(job: Job, found: Sequence[Found]) -> pa.Table:
    """Lay the rows of a job out."""
    return pa.Table.from_pylist(rows_of(job, found), schema=SCHEMA)


def _in_order(table: pa.Table) -> pa.Table:
    """Sort rows, and keep the first of those that a job left twice."""
    plain = plain_text(table).sort_by([(name, "ascending") for name in ORDER])
    keys = list(zip(plain["job"].to_pylist(), plain["problem"].to_pylist(), strict=True))
    first = [number for number, key in enumerate(keys) if number == 0 or key != keys[number - 1]]
    return plain.take(pa.array(first, pa.int64())).cast(SCHEMA)


def plain_text(table: pa.Table) -> pa.Table:
    """Write out the dictionaries of a table, which Python reads three times as slowly."""

    def plain(kind: pa.DataType) -> pa.DataType:
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    return table.cast(pa.schema([(field.name, plain(field.type)) for field in SCHEMA]))


# --- running -------------------------------------------------------------------------------------


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

    data: Dataset
    run: Mapping[str, Any] = field(default_factory=dict)
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
        stored = Stored(plan, data)
        total, missing = len(stored.jobs), stored.missing()
        finished = total - len(missing)
        report(finished, total, "starting")
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
                    report(finished, total, job.label)
        if compact and not failures:
            data.compact()
    return Ran(len(missing) - len(failures), total, tuple(failures))


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
        "plan": {**asdict(plan), "sweep": to_plain(plan.sweep)},
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
