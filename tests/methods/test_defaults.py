"""Every default is the paper's, which ``defaults.toml`` states beside its place."""

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from kvlab.reference import methods

STATED = tomllib.loads((Path(__file__).parent / "defaults.toml").read_text("utf-8"))
OF_ALL = STATED.pop("every_method")


@pytest.mark.parametrize("name", methods.names())
def test_defaults_are_the_papers(name):
    """Options of every method stand once, unless a paper says otherwise; none is left out."""
    options = [each for each in fields(methods.lookup(name)) if each.init and each.name != "base"]
    stated = {**OF_ALL, **STATED.get(name, {})}
    expected = {each.name: stated[each.name][0] for each in options}
    assert {x.name: "none" if x.default is None else x.default for x in options} == expected
    assert set(STATED.get(name, {})) <= set(expected)


def test_every_stated_default_is_of_a_method_and_has_a_source():
    assert set(STATED) <= set(methods.names())
    assert all(place for table in (OF_ALL, *STATED.values()) for _, place in table.values())
