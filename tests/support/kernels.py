"""Kernels under test, of ``tests/conformance/kernels.toml``: written into a file, and opened."""

import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kvlab.reference.conformance import Case, Isolated, Program, load

TABLE: dict[str, Any] = tomllib.loads(
    (Path(__file__).parent.parent / "conformance" / "kernels.toml").read_text(encoding="utf-8")
)


@dataclass
class Answering:
    """An implementation whose answers a function gives."""

    answer: Callable[[Case], dict[str, Any]]
    targets: str = "*"
    precision: str = "float32"

    def offers(self, target: str) -> bool:
        return fnmatchcase(target, self.targets)


def write(folder: Path, by: str, **instead: str) -> Path:
    """Write the source of a kernel, with other texts in place of some of the right ones."""
    text = TABLE["sources"][by]
    for word, right in TABLE["right"][by].items():
        text = text.replace(word, instead.get(word, right))
    file = folder / "kernel.py"
    file.write_text(text)
    return file


@contextmanager
def opened(file: Path, by: str, timeout: float = 300.0) -> Iterator[Any]:
    """Open a kernel as its source is run, and close it."""
    if by in ("function", "memory"):
        yield load(file)
        return
    command = f"{sys.executable} {file}"
    isolated = by == "isolated"
    made = Isolated(file, timeout=timeout) if isolated else Program(command, timeout=timeout)
    if isinstance(made, Program):
        made.stays = by == "staying"
    try:
        yield made
    finally:
        made.close()
