"""Plausible bugs, each a change of one line or two, and the implementations that they make.

`bugs.toml` lists them. A bug of the reference is planted in a copy of it that is imported anew, and
the copy is put to the test as anybody's kernel would be; a bug of whole caches is planted in a copy
of `engine.py`. ``PYTHONPATH=tests python tests/conformance/mutants.py`` prints the rows of
docs/conformance_bugs.md.
"""

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
from planted import changed

import kvlab.reference
from kvlab.reference.conformance.report import ABOUT_GROUPS

PACKAGE = "kvlab.reference"
ROOT = Path(kvlab.reference.__file__).parent
HERE = Path(__file__).parent


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

    @property
    def source(self) -> str:
        """The file with the bug."""
        return changed(self.file, self.changes)


def identifier(bug: Bug) -> str:
    """Return a bug's name as the name of a test."""
    return re.sub(r"\W+", "_", bug.name)


def bugs(kind: str, above: Path) -> tuple[Bug, ...]:
    """Read the bugs of one kind, of files in a folder."""
    listed = tomllib.loads((HERE / "bugs.toml").read_text(encoding="utf-8"))[kind]
    return tuple(
        Bug(
            each["name"],
            each["target"],
            above / each["file"],
            ((each["right"], each["wrong"]), *((a, b) for a, b in each.get("also", ()))),
        )
        for each in listed
    )


BUGS, SIZED_BUGS = bugs("vectors", ROOT), bugs("sized", ROOT)
"""Bugs of the reference; the sized ones show at sizes of kernels alone."""

CACHE_BUGS = bugs("cache", HERE)
"""Bugs of whole caches."""


def rows() -> list[str]:
    """Return the rows of the tables that the documentation shows."""
    of_reference = (
        (bug.name, f"`{bug.target}`", f"`{bug.file.relative_to(ROOT).as_posix()}`") for bug in BUGS
    )
    of_caches = (
        (bug.name, f"`{bug.target}`", ABOUT_GROUPS[bug.target]["stresses"]) for bug in CACHE_BUGS
    )
    return [f"| {' | '.join(row)} |" for row in (*of_reference, *of_caches)]


def planted_engine(bug: Bug | None) -> ModuleType:
    """Return a copy of the engine, with a bug or without one."""
    file = HERE / "engine.py"
    source = file.read_text(encoding="utf-8") if bug is None else bug.source
    module = ModuleType("planted_engine")
    exec(compile(source, str(file), "exec"), module.__dict__)
    return module


@cache
def compiled(origin: str) -> CodeType:
    """Return the code of an unchanged file; all copies share it."""
    return compile(Path(origin).read_text(encoding="utf-8"), origin, "exec")


@cache
def compiled_text(text: str) -> CodeType:
    """Return the code of a method that `dataclasses` writes; all copies share it, too."""
    return compile(text, "<dataclass>", "exec")


def execute(text: str, names: dict[str, Any], into: dict[str, Any]) -> None:
    """Stand in for ``exec`` in `dataclasses`, where compiling takes most of an import's time."""
    exec(compiled_text(text), names, into)


class Planted(MetaPathFinder, Loader):
    """Loads the package, one of its modules from changed source."""

    def __init__(self, name: str, source: str) -> None:
        self.name, self.source = name, source

    def find_spec(self, fullname: str, path, target=None) -> ModuleSpec | None:
        """Find what lies in the package alone."""
        if not fullname.startswith(f"{PACKAGE}."):
            return None
        found = PathFinder.find_spec(fullname, path)
        assert found is not None and found.origin is not None
        locations = found.submodule_search_locations
        return spec_from_file_location(
            fullname, found.origin, loader=self, submodule_search_locations=locations
        )

    def exec_module(self, module: ModuleType) -> None:
        """Run the source, changed where the bug is."""
        changed = module.__name__ == self.name
        code = compile(self.source, "<bug>", "exec") if changed else compiled(str(module.__file__))
        exec(code, module.__dict__)


@contextmanager
def imported_anew(finder: MetaPathFinder) -> Iterator[None]:
    """Forget the package, import it through a finder, without checks of types; then restore it."""
    ours = {name: m for name, m in sys.modules.items() if f"{name}.".startswith(f"{PACKAGE}.")}
    finders = sys.meta_path[:]
    for name in ours:
        del sys.modules[name]
    sys.meta_path[:] = [finder, *(f for f in finders if "jaxtyping" not in type(f).__module__)]
    try:
        yield
    finally:
        sys.meta_path[:] = finders
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{PACKAGE}.")]:
            del sys.modules[name]
        sys.modules.update(ours)
        sys.modules["kvlab"].reference = ours[PACKAGE]  # type: ignore[attr-defined]


class Copy:
    """The reference, imported anew, as an implementation under test."""

    precision = "float32"

    def __init__(self, bug: Bug | None) -> None:
        name, source = "nothing", ""
        if bug is not None:
            parts = bug.file.relative_to(ROOT).with_suffix("").parts
            name, source = ".".join((PACKAGE, *parts)), bug.source
        once = patch("dataclasses.exec", execute, create=True)
        with imported_anew(Planted(name, source)), once:
            targets = importlib.import_module(f"{PACKAGE}.conformance.targets")
            importlib.import_module(f"{PACKAGE}.methods").discover()
            importlib.import_module(f"{PACKAGE}.precisions").families()
        self.expected = targets.answer

    def offers(self, target: str) -> bool:
        """Everything."""
        return True

    def answer(self, case) -> dict[str, np.ndarray]:
        """Return what the copy computes, rounded as a kernel in float32 would."""
        return {
            name: each.value.astype(np.float32) if each.kind == "numbers" else each.value
            for name, each in self.expected(case).items()
        }


if __name__ == "__main__":
    print("\n".join(rows()))
