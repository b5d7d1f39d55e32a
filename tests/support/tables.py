"""Tables of a test's cases, in the folder's ``cases.toml``."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def cases(test_file: str, table: str, arguments: str):
    """Give a test the rows of its table; "None" is None, and what follows on "=" is worked out."""
    one = " " not in arguments
    rows = listed(test_file, table)
    found = [known(row) if one else [*map(known, row)] for row in rows]
    return pytest.mark.parametrize(arguments if one else arguments.split(" "), found)


def listed(test_file: str, table: str) -> Any:
    path = Path(test_file)
    return tomllib.loads(path.with_name("cases.toml").read_text("utf-8"))[path.stem][table]


def known(cell: Any) -> Any:
    if isinstance(cell, str) and (cell == "None" or cell.startswith("= ")):
        return eval(cell.removeprefix("= "), {"np": np})
    return cell
