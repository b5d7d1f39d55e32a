"""The fast side mirrors the reference: same files, names and parameters, defaults stated once."""

from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from kvlab.fast import methods as fast, precisions
from kvlab.fast.engine import twins
from kvlab.fast.engine.twins import TWINS

ROOT = Path(__file__).parents[2]


for package in (fast, precisions):
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")


def files_of(side: str, folder: str) -> set[str]:
    return {path.name for path in (ROOT / side / folder).glob("*.py")}


def test_every_file_of_twins_has_the_name_of_a_method_or_precision():
    assert files_of("fast", "methods") < files_of("reference", "methods")
    assert files_of("fast", "precisions") == files_of("reference", "precisions")


@pytest.mark.parametrize("part", TWINS, ids=lambda part: part.__name__)
def test_twins_have_the_same_name_and_parts(part):
    twin = TWINS[part]
    assert twin.__name__ == part.__name__
    assert {f.name for f in fields(twin)} <= {"spec", *(f.name for f in fields(part))}


@pytest.mark.parametrize("part", TWINS, ids=lambda part: part.__name__)
def test_the_module_of_a_twin_is_imported_when_its_part_is_first_asked_for(part, monkeypatch):
    asked = []
    monkeypatch.setattr(twins, "TWINS", {})
    monkeypatch.setattr(twins, "import_module", asked.append)
    twins.find_twin(part)
    assert asked == [TWINS[part].__module__]
