"""Every line that carries a tag has hand-computed tests that die with it."""

import os
import subprocess
import sys

import pytest
from sampling import sampled


@pytest.mark.parametrize("words", sampled(((), ("DesireKV 9",)), (("DesireKV 9",),)))
def test_changes_of_tagged_lines_are_noticed_or_argued(words):
    """Quick is one tag; the table that the command prints is the message."""
    command = [sys.executable, "tests/tagged.py", *words]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": "tests"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
