"""Plant the mistakes of the tables ``mistakes.toml``, and run the test that each names.

``PYTHONPATH=tests python tests/mistakes.py [WORDS]`` prints a row for every mistake whose file or
kind holds one of the words, or for all. They are what changes of one tagged line (`tagged.py`) do
not stand for: steps in another order, state that is not gathered, a wrong default. A mistake that
nothing can notice says ``same``, and why its code does the same; then no test that is named for its
file may notice it.

Each runs in a forked process: in most the code of the file's functions is exchanged; a mistake
outside of functions, as in a default, is imported. A test that crashes has noticed nothing, and
stored vectors have no say.
"""

import ast
import importlib
import os
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest
from planted import changed
from tagged import GIVEN, ROOT, first_failure, functions_in_memory, in_child

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
    *("-q", "-p", "no:cacheprovider", "-p", "no:kvlab", "--hypothesis-seed=0"),
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
    """The test that notices it, as ``file::function``."""
    same: str = ""
    """Why nothing can notice it."""

    @property
    def module(self) -> str:
        path = self.file.relative_to(ROOT).with_suffix("").as_posix()
        return f"kvlab.{path.removesuffix('/__init__').replace('/', '.')}"

    @cached_property
    def source(self) -> str:
        return changed(self.file, [(self.right, self.wrong)])

    @property
    def is_in_functions(self) -> bool:
        """Whether nothing changes but what functions do."""
        return outside_functions(self.source) == outside_functions(self.file.read_text("utf-8"))


def mistakes() -> list[Mistake]:
    """Read all tables below this folder: lists by file, from the root of the repository."""
    tables = sorted(Path(__file__).parent.rglob("mistakes.toml"))
    return [
        Mistake(ROOT / file, **each)
        for table in tables
        for file, listed in tomllib.loads(table.read_text("utf-8")).items()
        for each in listed
    ]


def outside_functions(source: str) -> str:
    """Return the tree of a source, in which functions do nothing."""
    tree = ast.parse(source)
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef):
            each.body = []
    return ast.dump(tree)


def functions_of(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of the functions and methods of a module or class."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & 1:  # a function's: its variables are optimised
                yield each
            else:
                yield from functions_of(each)


class FirstFailure:
    test = said = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.test:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.test, self.said = report.nodeid, crash.message if crash else ""


def first_failure_of_import(mistake: Mistake) -> tuple[str, str]:
    """Import the package with a mistake; return the test's first case that fails, and its message.

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
        code = pytest.main([*OPTIONS, "-x", mistake.test], plugins=[first])
    return (first.test, first.said) if first.test or code == 0 else ("", f"pytest: {code!r}")


class Planter:
    """Takes the place of pytest's loop over the tests, once these are collected."""

    def __init__(self, planted: Sequence[Mistake]) -> None:
        self.planted = planted
        self.found: dict[Mistake, tuple[str, str] | None] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Plant one mistake after the other, and note the first case of its test that fails."""
        for each in self.planted:
            importlib.import_module(each.module)
        functions, named = functions_in_memory(), tests_by_file(self.planted)
        for each in self.planted:
            tests = [each.test] if each.test else named[each.file]
            items = [item for item in session.items if item.nodeid.split("[")[0] in tests]
            code = compile(each.source, str(each.file), "exec")
            own = [(functions[str(each.file), x.co_qualname], x) for x in functions_of(code)]
            self.found[each] = in_child(partial(first_failure, items, own))
            show(each, self.found[each])
        return True


def outcomes(chosen: Sequence[Mistake]) -> dict[Mistake, tuple[str, str] | None]:
    """Return the first case that fails of each mistake's test, and what it says; None: too long."""
    for name in SHARED:
        importlib.import_module(name)
    planter = Planter([each for each in chosen if each.is_in_functions])
    found = {}
    for each in chosen:
        if each not in planter.planted:
            found[each] = in_child(partial(first_failure_of_import, each))
            show(each, found[each])
    files = sorted({each.test.partition("::")[0] for each in planter.planted if each.test})
    if files:
        assert pytest.main([*OPTIONS, *files], plugins=[planter]) == 0
    return found | planter.found


def show(mistake: Mistake, found: tuple[str, str] | None) -> None:
    print(
        mistake.file.stem, mistake.kind, *(found or ())[:1], sep=" | ", file=sys.stderr, flush=True
    )


def tests_by_file(listed: Sequence[Mistake]) -> Mapping[Path, set[str]]:
    """Return the tests that are named for the mistakes of each file."""
    tests = defaultdict(set)
    for each in listed:
        tests[each.file].add(each.test)
    return tests


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
