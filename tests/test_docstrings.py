"""Public methods have docstrings, but for those that override a documented one of a base class."""

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
EMPTY = ("ABC", "Generic", "Protocol")
"""Bases from elsewhere without methods; nothing is known of others, so they may have any."""


def classes_in(source: str) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))


def bases_of(node: ast.ClassDef) -> list[str]:
    names = (ast.unparse(base).partition("[")[0] for base in node.bases)
    return [name.rpartition(".")[2] for name in names]


def documented(node: ast.ClassDef) -> set[str]:
    """Return the names of methods that have a docstring, and of attributes that one follows."""
    found = {
        each.name
        for each in node.body
        if isinstance(each, ast.FunctionDef) and ast.get_docstring(each)
    }
    for each, after in pairwise(node.body):
        if isinstance(each, ast.Assign) and isinstance(after, ast.Expr):
            found |= {target.id for target in each.targets if isinstance(target, ast.Name)}
    return found


def undocumented(sources: list[str]) -> list[str]:
    """Return the public methods without a docstring, their own or that of what they override."""
    project: dict[str, list[ast.ClassDef]] = {}
    for node in (node for source in sources for node in classes_in(source)):
        project.setdefault(node.name, []).append(node)

    def inherits(node: ast.ClassDef, name: str) -> bool:
        for base in bases_of(node):
            if base not in project and base not in EMPTY:
                return True
            for each in project.get(base, []):
                if each is not node and (name in documented(each) or inherits(each, name)):
                    return True
        return False

    return [
        f"{node.name}.{each.name}"
        for nodes in project.values()
        for node in nodes
        for each in node.body
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")
        if not ast.get_docstring(each) and not inherits(node, each.name)
    ]


def test_methods_that_override_nothing_have_docstrings():
    paths = [path for folder in ("reference", "fast") for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 100
    assert undocumented([path.read_text(encoding="utf-8") for path in paths]) == []


def test_the_check_can_fail():
    source = """
class Base(ABC):
    def documented(self):
        'Say so.'

    @property
    def missing(self): ...

    settled = False
    'Whether it is.'
    unexplained = False

class Child(Base):
    def documented(self): ...
    @property
    def settled(self): ...
    @property
    def unexplained(self): ...
    def also_missing(self): ...
    def _private(self): ...

class Elsewhere(Template):
    def substitute(self): ...
"""
    assert undocumented([source]) == ["Base.missing", "Child.unexplained", "Child.also_missing"]
