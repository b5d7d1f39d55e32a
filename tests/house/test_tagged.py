"""Every line that carries a tag has hand-computed tests that die with it."""

import os

import pytest

from support.running import python
from support.tagged import tagged_lines

PARTS = 9
TAGS = sorted({tag for tag, *_ in tagged_lines(())})


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_changes_of_tagged_lines_are_noticed_or_argued(part):
    """The table that the command prints is the message."""
    environment = os.environ | {"PYTHONPATH": "tests"}
    done = python("-m", "support.tagged", *TAGS[part::PARTS], env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
