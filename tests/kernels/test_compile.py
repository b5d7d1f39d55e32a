"""The kernels compile for a GPU, which the interpreter does not show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("wanted", "least"), [("--once", 11), pytest.param("all", 60, marks=pytest.mark.slow)]
)
def test_every_kernel_compiles(wanted, least):
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compile_kernels.py")
    done = subprocess.run(
        [sys.executable, script, wanted],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("bytes shared") >= least
