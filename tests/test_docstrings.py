"""Public methods have docstrings, but for those that override a method of a base class."""

import ast
import importlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@dataclass
class Class:
    """What the source says about a class."""

    bases: list[str]
    """Full names."""
    methods: dict[str, bool]
    """Names, and whether there is a docstring."""
    documented_attributes: set[str]
    """Names of attributes that a docstring follows."""


def classes_of(source: str, module: str) -> dict[str, Class]:
    """Classes of a module by their full names."""
    tree, full, found = ast.parse(source), {}, {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            full |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            full |= {name.asname or name.name: name.name for name in node.names}
        elif isinstance(node, ast.ClassDef):
            full[node.name] = f"{module}.{node.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names = [ast.unparse(base).partition("[")[0] for base in node.bases]
            first_parts = [name.partition(".")[0] for name in names]
            bases = [
                full.get(first, first) + name.removeprefix(first)
                for name, first in zip(names, first_parts, strict=True)
            ]
            methods = {
                each.name: ast.get_docstring(each) is not None
                for each in node.body
                if isinstance(each, ast.FunctionDef)
            }
            found[full[node.name]] = Class(bases, methods, documented_attributes(node))
    return found


def documented_attributes(node: ast.ClassDef) -> set[str]:
    found = set()
    for each, after in pairwise(node.body):
        text = after.value if isinstance(after, ast.Expr) else None
        if isinstance(each, ast.Assign) and isinstance(text, ast.Constant):
            found |= {target.id for target in each.targets if isinstance(target, ast.Name)}
    return found


def inherits(name: str, bases: list[str], project: dict[str, Class]) -> bool:
    """Whether a base class has such a method, or a documented attribute in its place."""
    for base in bases:
        if base in project:
            known = project[base].documented_attributes | project[base].methods.keys()
            if name in known or inherits(name, project[base].bases, project):
                return True
        elif "." in base:
            module, _, attribute = base.rpartition(".")
            if hasattr(getattr(importlib.import_module(module), attribute), name):
                return True
    return False


def undocumented(project: dict[str, Class]) -> list[str]:
    """Public methods without a docstring that override nothing."""
    return [
        f"{owner}.{name}"
        for owner, described in project.items()
        for name, documented in described.methods.items()
        if not documented and not name.startswith("_")
        if not inherits(name, described.bases, project)
    ]


def test_methods_that_override_nothing_have_docstrings():
    pytest.importorskip("transformers")
    project: dict[str, Class] = {}
    for folder in ("reference", "fast"):
        for path in (ROOT / folder).rglob("*.py"):
            module = ".".join(["kvlab", *path.relative_to(ROOT).with_suffix("").parts])
            project |= classes_of(path.read_text(encoding="utf-8"), module)
    assert len(project) > 200
    assert undocumented(project) == []


def test_the_check_can_fail():
    source = """
from abc import ABC
from string import Template

class Base(ABC):
    def documented(self):
        'Say so.'

    @property
    def missing(self): ...

    settled = False
    'Whether it is.'
    unexplained = False

class Child(Base, Template):
    def documented(self): ...
    @property
    def settled(self): ...
    @property
    def unexplained(self): ...
    def substitute(self): ...
    def also_missing(self): ...
    def _private(self): ...
"""
    missing = ["m.Base.missing", "m.Child.unexplained", "m.Child.also_missing"]
    assert undocumented(classes_of(source, "m")) == missing
