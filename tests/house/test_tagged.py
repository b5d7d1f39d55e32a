"""Every line that carries a tag has hand-computed tests that die with it."""

import os
import subprocess
import sys

import pytest

from support.sampling import sampled


@pytest.mark.parametrize("tag", sampled(("", "DesireKV 9"), ("DesireKV 9",)))
def test_changes_of_tagged_lines_are_noticed_or_argued(tag):
    """Quick is one line of them all; the table that the command prints is the message."""
    command = [sys.executable, "-m", "support.tagged", *filter(None, [tag])]
    environment = os.environ | {"PYTHONPATH": "tests"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
