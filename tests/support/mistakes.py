"""Plant the mistakes of the tables ``mistakes.toml``, and run the test that each names.

``python tests/mistakes.py [WORDS]`` prints a row for every mistake whose file or
kind holds one of the words, or for all. They are what changes of one tagged line (`tagged.py`) do
not stand for: steps in another order, state that is not gathered, a wrong default. A mistake that
nothing can notice says ``same``, and why its code does the same; then no test that is named for its
file may notice it.

Each is imported and tested in a process of its own. A test that crashes has noticed nothing, and
stored vectors have no say.
"""

import importlib
import os
import sys
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from support.planted import changed
from support.tagged import GIVEN, ROOT, in_child

KINDS = (
    "order of two steps",
    "state not gathered or stale",
    "wrong default",
    "wrong axis",
    "normaliser over the wrong set",
    "second event only",
    "another rule",
)
SHARED = ("hypothesis", "numpy", "torch", "transformers")
"""What tests import besides kvlab, here once for all."""
CRASHES = (*GIVEN["crashes"], "ValueError: operands could not", "ValueError: non-broadcastable")
"""What is said by a test that crashes."""
OPTIONS = (
    *("-q", "-p", "no:cacheprovider", "-p", "no:kvlab", "--hypothesis-seed=0", "--assert=plain"),
    *("-o", "addopts=--import-mode=importlib", "-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
"""Without checks of types: a test has to miss a right number."""


@dataclass(frozen=True)
class Mistake:
    """A wrong text, in the place of a right one that its file holds once."""

    file: Path
    kind: str
    right: str
    wrong: str
    test: str = ""
    """The test that notices it, as ``file::function``, or a case of it where others take long."""
    same: str = ""
    """Why nothing can notice it."""

    @cached_property
    def source(self) -> str:
        return changed(self.file, [(self.right, self.wrong)])


def mistakes() -> list[Mistake]:
    """Read all tables below this folder: lists by file, from the root of the repository."""
    tables = sorted((ROOT / "tests").rglob("mistakes.toml"))
    return [
        Mistake(ROOT / file, **each)
        for table in tables
        for file, listed in tomllib.loads(table.read_text("utf-8")).items()
        for each in listed
    ]


class FirstFailure:
    test = said = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.test:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.test, self.said = report.nodeid, crash.message if crash else ""


def first_failure(mistake: Mistake, tests: Sequence[str]) -> tuple[str, str]:
    """Import the package with a mistake; return the tests' first case that fails, and its message.

    Nothing of the package may have been imported before.
    """
    read, stats = SourceFileLoader.get_data, SourceFileLoader.path_stats

    def get_data(loader: SourceFileLoader, path: str) -> bytes:
        if mistake.file == Path(path).resolve():
            return mistake.source.encode()
        return read(loader, path)

    def path_stats(loader: SourceFileLoader, path: str):
        if mistake.file == Path(path).resolve():
            raise OSError("compiled code is neither read nor written")
        return stats(loader, path)

    SourceFileLoader.get_data, SourceFileLoader.path_stats = get_data, path_stats
    first = FirstFailure()
    with open(os.devnull, "w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        code = pytest.main([*OPTIONS, "-x", *tests], plugins=[first])
    return (first.test, first.said) if first.test or code == 0 else ("", f"pytest: {code!r}")


def outcomes(chosen: Sequence[Mistake]) -> dict[Mistake, tuple[str, str] | None]:
    """Return the first case that fails of each mistake's test, and what it says; None: too long."""
    for name in SHARED:
        importlib.import_module(name)
    named = defaultdict(list)
    for each in mistakes():
        named[each.file] += [each.test] if each.test else []
    found = {}
    for each in chosen:
        tests = [each.test] if each.test else named[each.file]
        found[each] = in_child(partial(first_failure, each, sorted({*tests})))
        show(each, found[each])
    return found


def show(mistake: Mistake, found: tuple[str, str] | None) -> None:
    print(
        mistake.file.stem, mistake.kind, *(found or ())[:1], sep=" | ", file=sys.stderr, flush=True
    )


def main(words: Sequence[str]) -> int:
    """Print the table; return 1 if a mistake is not noticed, or only by a crash, or has a reason
    and is noticed.
    """
    os.chdir(ROOT)
    chosen = [
        each
        for each in mistakes()
        if not words or any(word in f"{each.file} {each.kind}" for word in words)
    ]
    print("| file | kind | mistake | noticed by |\n| --- | --- | --- | --- |")
    wrong = 0
    for each, found in outcomes(chosen).items():
        test, said = found or ("", "it takes too long")
        noticed = bool(test) and not said.startswith(CRASHES)
        shown = test.removeprefix("tests/") if noticed else each.same or f"nothing {said}"
        if noticed == bool(each.same):
            wrong, shown = wrong + 1, f"**{shown}**"
        text = " ".join(each.wrong.split()).replace("|", "\\|")
        print("|", each.file.relative_to(ROOT), "|", each.kind, f"| `{text}` | {shown} |")
    equal = sum(bool(each.same) for each in chosen)
    print(f"{len(chosen)} mistakes, of which {equal} do the same; {wrong} went wrong")
    return int(wrong > 0)
