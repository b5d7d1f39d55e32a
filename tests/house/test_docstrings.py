"""Public methods have docstrings, but for those that override one of a base class."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
EMPTY = ("ABC", "Generic", "Protocol")
"""Bases from elsewhere without methods; nothing is known of others, so they may have any."""


def names_in(node: ast.ClassDef) -> set[str]:
    """Return the methods and attributes that a class defines."""
    functions = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return functions | {each.id for each in names if isinstance(each.ctx, ast.Store)}


def undocumented(sources: list[str]) -> list[str]:
    """Return the public methods that have no docstring and override nothing."""
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]

    def inherits(node: ast.ClassDef, name: str) -> bool:
        bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
        found = [each for each in classes if each.name in bases and each is not node]
        if bases - {each.name for each in found} - {node.name, *EMPTY}:
            return True
        return any(name in names_in(each) or inherits(each, name) for each in found)

    return [
        f"{node.name}.{each.name}"
        for node in classes
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

class Child(Base):
    def documented(self): ...
    @property
    def settled(self): ...
    def also_missing(self): ...
    def _private(self): ...

class Elsewhere(Template):
    def substitute(self): ...
"""
    assert undocumented([source]) == ["Base.missing", "Child.also_missing"]
