"""Results as Parquet, as reports write them and as they are published.

Older sweeps kept theirs so, in ``results/``, a file per job or one for all. They are read as any
others.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from kvlab.fast.lab.files import write_completely
from kvlab.fast.lab.sweep.jobs import Result

COLUMNS = {str: pa.string(), bool: pa.bool_(), int: pa.int32(), float: pa.float32()}
WIDE = {"seed": pa.int64(), **dict.fromkeys(("loss", "accepted", "nbytes"), pa.float64())}
SCHEMA = pa.schema(
    [
        (name, WIDE.get(name) or COLUMNS[(get_args(kind) or (kind,))[0]])
        for name, kind in get_type_hints(Result).items()
    ]
)
"""A column for every field of a `Result`."""
OPTIONAL = {each.name for each in fields(Result) if each.default is None}
"""Columns that older results may lack."""


def write_parquet(rows: Sequence[Result], path: Path) -> None:
    """Write results, completely or not at all."""
    table = pa.Table.from_pylist(list(map(vars, rows)), schema=SCHEMA)
    with write_completely(path) as file:
        pq.write_table(table, file, compression="zstd")


def read_parquet(path: Path) -> list[Result]:
    """Read results; ValueError if a file is damaged."""
    try:
        table = pq.read_table(path)
        for name in OPTIONAL.difference(table.column_names):
            table = table.append_column(name, pa.nulls(len(table), SCHEMA.field(name).type))
        rows = table.select(SCHEMA.names).cast(SCHEMA).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowKeyError, KeyError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path} holds no results of a sweep ({reason}); delete it, and run the sweep again"
        ) from None
    return [Result(**row) for row in rows]
