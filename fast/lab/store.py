"""One file of rows, which several processes of a machine fill: whole rows, whatever ends them.

The file is a database of SQLite. Each item of a work has an id and becomes one row. A process
claims an item before it begins with it, so that no other one does; the claim of a process that is
gone is free again. A row is JSON text, made from a record and read as one again (`written`,
`read_as`), so that reading a file runs no code.
"""

import json
import os
import platform
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict
from uuid import uuid4

import numpy as np

PATIENCE = 60.0
"""Seconds that a process waits while others write."""


class Store:
    """The rows of one work; without a path, nothing outlives the process."""

    def __init__(self, path: Path | None = None, durable: bool = True) -> None:
        """Open a file, or make it; OSError if it is no such file.

        Only a ``durable`` file stays whole when the power fails; that takes milliseconds per row.
        """
        self.path = path
        self.owner = f"{platform.node()} {os.getpid()} {_begin_of(os.getpid())} {uuid4().hex}"
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        where = ":memory:" if path is None else path
        with self._named():
            self._database = sqlite3.connect(where, timeout=PATIENCE, isolation_level=None)
        if not durable:
            self._do("PRAGMA synchronous = OFF")
        self._do("CREATE TABLE IF NOT EXISTS rows (item TEXT PRIMARY KEY, owner TEXT, row TEXT)")

    def _do(self, command: str, *values: str) -> sqlite3.Cursor:
        with self._named():
            return self._database.execute(command, values)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise OSError(
                f"{self.path} cannot be used ({error}); if it is damaged, delete it, and run the "
                "command again"
            ) from None

    def claim(self, item: str) -> bool:
        """Say whether this process may do an item: it has no row, and nobody is at work on it."""
        known = self._do("SELECT owner, row FROM rows WHERE item = ?", item).fetchone()
        if known is None:
            made = self._do("INSERT OR IGNORE INTO rows VALUES (?, ?, NULL)", item, self.owner)
            return made.rowcount == 1
        owner, row = known
        if row is not None or owner == self.owner:
            return row is None
        if _is_alive(owner):
            return False
        taken = "UPDATE rows SET owner = ? WHERE item = ? AND owner = ? AND row IS NULL"
        return self._do(taken, self.owner, item, owner).rowcount == 1

    def keep(self, item: str, row: str) -> None:
        """Keep the row of an item, in place of any other."""
        self._do("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", item, self.owner, row)

    def row(self, item: str) -> str | None:
        """Return the row of an item, if there is one."""
        found = self._do("SELECT row FROM rows WHERE item = ?", item).fetchone()
        return found and found[0]

    def rows(self) -> dict[str, str]:
        """Return all rows by their items."""
        with self._named():  # rows are read as they are asked for
            return dict(self._do("SELECT item, row FROM rows WHERE row IS NOT NULL ORDER BY rowid"))

    def items(self) -> set[str]:
        """Return the items that have rows."""
        with self._named():
            return {item for (item,) in self._do("SELECT item FROM rows WHERE row IS NOT NULL")}

    def read(self, item: str, text: str, kind: Any) -> Any:
        """Return the text of a row as a value of a type; ValueError names file and item."""
        try:
            return read_as(kind, text)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{self.path}: the row of {item} cannot be read ({error}); it is damaged, or was "
                "written by a newer kvlab"
            ) from None

    def release(self) -> None:
        """Give the items back that this process has claimed and not done."""
        self._do("DELETE FROM rows WHERE owner = ? AND row IS NULL", self.owner)

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def _begin_of(process: int) -> str | None:
    """Say when a process began, where the system tells; None if it is gone."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return None if state[0] == "Z" else state[19]
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(process, 0)
    except OSError:
        return None
    return "once"


def _is_alive(owner: str) -> bool:
    """Say whether a process runs on this machine; of other machines none shares a file."""
    machine, process, begin, _ = owner.rsplit(" ", 3)  # a machine may have no name
    return machine == platform.node() and _begin_of(int(process)) == begin


# --- rows as text --------------------------------------------------------------------------------


def written(row: Any) -> str:
    """Write a row as JSON; of a record, what is not as its class has it by default."""
    return json.dumps(row, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if is_dataclass(value):
        return {
            each.name: getattr(value, each.name)
            for each in fields(value)
            if each.default is MISSING or getattr(value, each.name) != each.default
        }
    raise TypeError(f"a row cannot hold {value!r}")


def read_as(kind: Any, text: str) -> Any:
    """Read a row that was `written`, as a value of a type; of type Any, plain data."""
    return _made(kind, json.loads(text))


_hints = cache(get_type_hints)


def _made(kind: Any, value: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):  # of others than None the first; plain data fit all
        kind = next(each for each in get_args(kind) if each is not NoneType)
    origin: Any = get_origin(kind) or kind
    inside = get_args(kind)
    if isinstance(value, dict) and (is_dataclass(kind) or is_typeddict(kind)):
        hints = _hints(kind)
        return origin(**{name: _made(hints.get(name, Any), each) for name, each in value.items()})
    if isinstance(value, dict) and inside:
        return {name: _made(inside[-1], each) for name, each in value.items()}
    if isinstance(value, list) and inside:
        kinds = inside if origin is tuple and inside[-1] is not ... else [inside[0]] * len(value)
        found = [_made(each, part) for each, part in zip(kinds, value, strict=True)]
        return tuple(found) if origin is tuple else found
    if hasattr(kind, "array_type"):  # of jaxtyping
        return np.array(value)
    return kind(value) if isinstance(kind, type) and issubclass(kind, Enum) else value
