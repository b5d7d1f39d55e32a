"""The figures that the papers print, as data."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

DATA = files("kvlab.reference.proofs") / "data"


@cache
def read(file: str) -> dict[str, Any]:
    """Return what a TOML file of the data holds."""
    return tomllib.loads((DATA / file).read_text(encoding="utf-8"))


def printed_tables(paper: str) -> dict[str, Any]:
    """Return the tables of a paper by the name that ``data/printed.toml`` gives them."""
    return read("printed.toml")[paper]
