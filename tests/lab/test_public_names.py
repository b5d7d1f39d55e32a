"""What scripts import from ``kvlab.fast.lab``: it is there, typed, documented, and loaded late."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from kvlab.fast import lab

NAMES = [(module, name) for module, names in lab.MODULES.items() for name in names]
PAGE = Path(__file__).parents[2] / "docs" / "api" / "lab.md"


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_name_is_what_its_module_defines(module, name):
    for needed in ("torch", "lm_eval", "pyarrow"):
        pytest.importorskip(needed)
    found = getattr(lab, name)
    assert found is getattr(import_module(f"kvlab.fast.lab.{module}"), name)
    assert found.__module__ == f"kvlab.fast.lab.{module}"
    assert found.__doc__


def test_the_type_checker_sees_the_same_names():
    tree = ast.parse(Path(lab.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (each.module.removeprefix("kvlab.fast.lab."), name.name)
        for each in block.body
        for name in each.names
    }
    assert seen == set(NAMES)


def test_the_page_covers_every_name():
    sections = PAGE.read_text(encoding="utf-8").split("::: kvlab.fast.lab.")[1:]
    documented = {section.partition("\n")[0].strip(): section for section in sections}
    for module, name in NAMES:
        part = documented[module]
        assert "members:" not in part or name in part.partition("members:")[2], (module, name)


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="has no attribute 'compose'"):
        lab.compose  # noqa: B018


def test_what_needs_the_reference_alone_loads_no_pytorch():
    code = """
import sys
from kvlab.fast.lab import Sweep, compare, plan_methods, record_methods, simulate, stored_summary
assert "torch" not in sys.modules and "pyarrow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
