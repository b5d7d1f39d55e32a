"""Every line that carries a tag has hand-computed tests that die with it."""

import os
import subprocess
import sys

import pytest

from support.tagged import tagged_lines

PARTS = 9
TAGS = sorted({tag for tag, *_ in tagged_lines(())})


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("part", range(PARTS))
def test_changes_of_tagged_lines_are_noticed_or_argued(part):
    """The table that the command prints is the message."""
    environment = os.environ | {"PYTHONPATH": "tests"}
    command = [sys.executable, "-m", "support.tagged", *TAGS[part::PARTS]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
