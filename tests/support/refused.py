"""Tables of bad input: what each expression is refused with."""

import tomllib
from pathlib import Path

import pytest


def refused(test_file: str, table: str = "refused"):
    """Give a test the rows of its table in the folder's ``refused.toml``: ``bad`` and ``message``.

    A row is an expression, which the test evaluates with its own names, and a regular expression.
    """
    path = Path(test_file)
    rows = tomllib.loads(path.with_name("refused.toml").read_text("utf-8"))[path.stem][table]
    return pytest.mark.parametrize(("bad", "message"), rows.items())
