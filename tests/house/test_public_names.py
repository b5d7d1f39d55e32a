"""What users import stands in a few documented places."""

import ast
import importlib
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kvlab.reference
from support.running import python

ROOT = Path(__file__).parents[2]
PLACES = ("", ".methods", ".conformance", ".proofs", ".tasks")
"""Packages below kvlab.reference from which notebooks and pages may import."""
TEXTS = [*ROOT.glob("notebooks/[0-9]*.py"), ROOT / "README.md", *ROOT.glob("docs/*.md")]


def imports(text: str) -> set[str]:
    """Modules of the reference from which a file, or the snippets of a page, import."""
    snippets = re.findall(r"```\s*\{?[ .]*python.*?\n(.*?)```", text, re.DOTALL) or [text]
    found = set()
    for snippet in snippets:
        try:
            tree = ast.parse(snippet)
        except SyntaxError:
            continue
        found |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    return {module for module in found if module.startswith("kvlab.reference")}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_notebooks_and_pages_import_from_documented_places(path):
    below = {module.removeprefix("kvlab.reference") for module in imports(path.read_text("utf-8"))}
    packages = {module if module in PLACES else module.rpartition(".")[0] for module in below}
    deep = {module for module in below if module.count(".") > 1}
    assert packages <= set(PLACES)
    assert all(module.startswith((".proofs", ".tasks")) for module in deep)


def test_a_deep_import_would_be_seen():
    assert imports("from kvlab.reference.simulator.judge import judge") == {
        "kvlab.reference.simulator.judge"
    }


def test_the_order_of_reading_names_every_file():
    order = re.findall(r"^\d\. (.*)", kvlab.reference.__doc__ or "", re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(order))
    entries = {path.stem for path in (ROOT / "reference").iterdir() if path.suffix == ".py"}
    entries |= {path.parent.name for path in (ROOT / "reference").glob("*/__init__.py")}
    assert sorted(named) == sorted(entries - {"__init__"})


def test_every_public_name_is_documented():
    page = (ROOT / "docs" / "api" / "reference.md").read_text(encoding="utf-8")
    documented = {
        line.rpartition(".")[2] for line in re.findall(r"^::: (\S+)$", page, re.MULTILINE)
    }
    tree = ast.parse((ROOT / "reference" / "__init__.py").read_text(encoding="utf-8"))
    public = {
        each.asname for node in tree.body if isinstance(node, ast.ImportFrom) for each in node.names
    }
    assert documented == public - {"methods"}


def test_no_name_of_a_package_hides_one_of_its_modules():
    """Else ``import kvlab.reference.step as s`` would be a function, and no error."""
    hidden = []
    for found in pkgutil.walk_packages(kvlab.reference.__path__, "kvlab.reference."):
        package, _, name = found.name.rpartition(".")
        importlib.import_module(found.name)
        if not isinstance(getattr(sys.modules[package], name), ModuleType):
            hidden.append(found.name)
    assert hidden == []


def test_the_package_shows_what_it_has_and_imports_it_when_asked():
    code = """
import sys, kvlab
names = ["__version__", "compress", "fast", "methods", "press", "reference"]
assert dir(kvlab) == names, dir(kvlab)
assert not {"numpy", "torch"} & sys.modules.keys()
assert kvlab.__version__ and not hasattr(kvlab, "Any")
sys.modules["torch"] = None  # as where it is not installed
assert kvlab.methods.get("h2o", 8) == kvlab.reference.methods.get("h2o", 8)
assert not {"matplotlib", "scipy", "sympy"} & sys.modules.keys()
assert kvlab.fast.__name__ == "kvlab.fast"
try:
    kvlab.compress
except ImportError as error:
    print(error)
"""
    done = python("-c", code, check=True)
    assert "torch" in done.stdout


def test_compress_is_the_engines():
    fast = pytest.importorskip("kvlab.fast.huggingface")
    assert kvlab.compress is fast.compress
