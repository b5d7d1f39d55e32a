"""Plausible bugs, each a change of one line or two, and the implementations that they make.

`bugs.toml` lists them. A bug of the reference is planted in a copy of it that is imported anew, and
the copy is put to the test as anybody's kernel would be; a bug of whole caches is planted in a copy
of `engine.py`.
"""

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np

import kvlab.reference
from support.planted import changed

PACKAGE = "kvlab.reference"
ROOT = Path(kvlab.reference.__file__).parent
HERE = Path(__file__).parents[2] / "docs" / "examples" / "conformance"
"""Where `engine.py` is."""
TABLE = Path(__file__).parents[1] / "conformance" / "bugs.toml"


@dataclass(frozen=True)
class Bug:
    """Texts of one file, and what somebody wrote in their place."""

    name: str
    """What somebody got wrong."""
    target: str
    """What notices it first: a building block, a method, or a group of whole caches."""
    file: Path
    changes: tuple[tuple[str, str], ...]
    """Right and wrong texts."""
    thread: str = ""
    """Where users met it."""

    @property
    def source(self) -> str:
        return changed(self.file, self.changes)


def identifier(bug: Bug) -> str:
    return re.sub(r"\W+", "_", bug.name)


def bugs(kind: str, above: Path) -> tuple[Bug, ...]:
    listed = tomllib.loads(TABLE.read_text(encoding="utf-8"))[kind]
    return tuple(
        Bug(
            each["name"],
            each["target"],
            above / each["file"],
            ((each["right"], each["wrong"]), *((a, b) for a, b in each.get("also", ()))),
            each.get("thread", ""),
        )
        for each in listed
    )


BUGS, SIZED_BUGS = bugs("vectors", ROOT), bugs("sized", ROOT)
"""Bugs of the reference; the sized ones show at sizes of kernels alone."""

CACHE_BUGS = bugs("cache", HERE)
"""Bugs of whole caches."""


def planted_engine(bug: Bug | None) -> ModuleType:
    file = HERE / "engine.py"
    source = file.read_text(encoding="utf-8") if bug is None else bug.source
    module = ModuleType("planted_engine")
    exec(compile(source, str(file), "exec"), module.__dict__)
    return module


@cache
def compiled(text: str) -> CodeType:
    """Return the code of a file, or of a method that `dataclasses` writes; all copies share it."""
    return compile(text, "<copy>", "exec")


def execute(text: str, names: dict[str, Any], into: dict[str, Any]) -> None:
    """Stand in for ``exec`` in `dataclasses`, where compiling takes most of an import's time."""
    exec(compiled(text), names, into)


@contextmanager
def imported_anew(bug: Bug | None) -> Iterator[None]:
    """Forget the package, import it with a bug and without checks of types; then restore it."""
    ours = [name for name in sys.modules if f"{name}.".startswith(f"{PACKAGE}.")]
    finders = [PathFinder, *sys.meta_path]  # before pytest's and jaxtyping's, which change code
    real = kvlab.reference

    def get_code(loader: SourceFileLoader, fullname: str) -> CodeType:
        if bug is not None and bug.file.samefile(loader.path):
            return compiled(bug.source)
        return compiled(Path(loader.path).read_text(encoding="utf-8"))

    changed_loader = patch.object(SourceFileLoader, "get_code", get_code)
    with patch.dict(sys.modules), patch.object(sys, "meta_path", finders), changed_loader:
        for name in ours:
            del sys.modules[name]
        yield
    kvlab.reference = real


class Copy:
    """The reference, imported anew, as an implementation under test."""

    precision = "float32"

    def __init__(self, bug: Bug | None) -> None:
        with imported_anew(bug), patch("dataclasses.exec", execute, create=True):
            targets = importlib.import_module(f"{PACKAGE}.conformance.targets")
            importlib.import_module(f"{PACKAGE}.methods").discover()
            importlib.import_module(f"{PACKAGE}.precisions").families()
        self.expected = targets.answer

    def offers(self, target: str) -> bool:
        return True

    def answer(self, case) -> dict[str, np.ndarray]:
        """Return what the copy computes, rounded as a kernel in float32 would."""
        return {
            name: each.value.astype(np.float32) if each.kind == "numbers" else each.value
            for name, each in self.expected(case).items()
        }
