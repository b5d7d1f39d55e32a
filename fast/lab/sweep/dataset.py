"""The Parquet data set of a sweep: a directory that holds one file per job.

A file appears under its name only when it is complete, so a process can be killed at any time, and
a job that was done twice leaves the same rows. `worker.rows_of` makes the rows.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvlab.fast.lab.files import write_completely
from kvlab.fast.lab.sweep.plan import Job
from kvlab.fast.lab.sweep.worker import Found, rows_of

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
        ("output_error", pa.float32()),
        ("kl", pa.float32()),
        ("agreement", pa.float32()),
        ("entries", pa.float32()),
        ("nbytes", pa.float64()),
        ("average_bits", pa.float32()),
        ("payload_bits", pa.float32()),
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
