"""The figures that the papers print, as data."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


def printed_tables(paper: str) -> dict[str, Any]:
    """Return the tables of a paper by the name that ``printed.toml`` gives them."""
    return read_printed()[paper]


@cache
def read_printed() -> dict[str, Any]:
    """Return the tables of all papers."""
    text = (files("kvlab.reference") / "printed.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
