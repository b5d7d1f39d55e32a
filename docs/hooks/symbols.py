"""Finds the line of a function, a class or a tagged equation."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGET = re.compile(r"(?:reference|fast|tests)/[\w/]+\.py:[\w.]+")
"""How a page names what it links to: a file of the repository, and what is defined in it."""
DEFINITION = re.compile(r"\s*(?:async def|def|class) (\w+)")


@dataclass(frozen=True)
class Target:
    """One line of one file, and what it has to hold."""

    path: str
    line: int
    name: str
    """Qualified name of the function or class that is defined there, or tag of the equation."""
    inside: str | None = None
    """Qualified name of the function around an equation."""

    @property
    def tag(self) -> bool:
        """Whether the line carries an equation, not a definition."""
        return " " in self.name


def definition(target: str, root: Path = ROOT) -> Target:
    """Return the line of ``file.py:Class.function``.

    Raises:
        ValueError: if the file does not exist, or defines nothing of that name.
    """
    path, _, symbol = target.partition(":")
    if not (root / path).is_file():
        raise ValueError(f"{target}: {path} does not exist")
    lines = definitions(root / path)
    if symbol not in lines:
        raise ValueError(f"{target}: {path} defines no {symbol}")
    return Target(path, lines[symbol][0], symbol)


def equation(tag: str, root: Path = ROOT) -> Target:
    """Return the line of the reference that ends in the tag of an equation.

    Raises:
        ValueError: unless exactly one line has the tag.
    """
    found = tags(root).get(tag, [])
    if len(found) != 1:
        raise ValueError(f"[{tag}] must tag one line of reference/, it tags {len(found)}")
    path, line = found[0]
    return Target(path, line, tag, enclosing(definitions(root / path), line))


def equation_in(tag: str, function: str, root: Path = ROOT) -> Target:
    """Return the line of an equation that has to stand in ``file.py:Class.function``.

    Raises:
        ValueError: unless exactly one line has the tag, and the named function is the innermost
            around it.
    """
    found = equation(tag, root)
    if f"{found.path}:{found.inside}" != function:
        raise ValueError(f"[{tag}] tags a line of {found.path}:{found.inside}, not of {function}")
    return found


def twin(tag: str, root: Path = ROOT) -> str | None:
    """Name the function of ``fast/`` that mirrors the one in which an equation is tagged.

    The two sides share file names and names; None where ``fast/`` defines no such function.
    """
    found = equation(tag, root)
    path = twin_path(found.path)
    known = definitions(root / path) if (root / path).is_file() else {}
    return f"{path}:{found.inside}" if found.inside in known else None


def twin_path(path: str) -> str:
    """Return the file of ``fast/`` that mirrors one of ``reference/``."""
    inner = path.removeprefix("reference/")
    return f"fast/{inner}" if "/" in inner else f"fast/engine/{inner}"


def stale(target: Target, line: str) -> bool:
    """Say whether a line lacks the definition or the tag that a link to it promises."""
    if target.tag:
        return not line.rstrip().endswith(f"# [{target.name}]")
    found = DEFINITION.match(line)
    return found is None or found[1] != target.name.rpartition(".")[2]


def enclosing(lines: dict[str, tuple[int, int]], line: int) -> str | None:
    """Name the innermost definition around a line."""
    around = [name for name, (first, last) in lines.items() if first <= line <= last]
    return max(around, key=lambda name: lines[name][0], default=None)


@cache
def definitions(path: Path) -> dict[str, tuple[int, int]]:
    """Return first and last line of every function and class of a module, by qualified name."""
    found: dict[str, tuple[int, int]] = {}

    def collect(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[f"{prefix}{child.name}"] = child.lineno, child.end_lineno or child.lineno
                if isinstance(child, ast.ClassDef):
                    collect(child, f"{prefix}{child.name}.")

    collect(ast.parse(path.read_text(encoding="utf-8")), "")
    return found


@cache
def tags(root: Path) -> dict[str, list[tuple[str, int]]]:
    """Return file and line of every tag ``# [NAME 1]`` of the reference."""
    found: dict[str, list[tuple[str, int]]] = {}
    for path in sorted((root / "reference").rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if tagged := re.search(r"# \[([\w-]+ \d+)\]$", line):
                place = path.relative_to(root).as_posix(), number
                found.setdefault(tagged[1], []).append(place)
    return found


def forget() -> None:
    """Forget what was read: the files may have changed."""
    definitions.cache_clear()
    tags.cache_clear()
