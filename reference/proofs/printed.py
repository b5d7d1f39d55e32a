"""The figures that the papers print, as data."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

DATA = files("kvlab.reference.proofs") / "data"


@cache
def printed_tables(paper: str) -> dict[str, Any]:
    """Return the tables of a paper by the name that ``data/printed.toml`` gives them."""
    return tomllib.loads((DATA / "printed.toml").read_text(encoding="utf-8"))[paper]
