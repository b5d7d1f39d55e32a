"""What the interpreter does not show: the kernels compile for a GPU, and few are launched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("wanted", "least"), [("--once", 11), pytest.param("all", 60, marks=pytest.mark.slow)]
)
def test_every_kernel_compiles(wanted, least):
    assert not_interpreted("compile_kernels.py", wanted).count("bytes shared") >= least


EVICTING = (
    *("h2o", "fast_caote:tova", "streaming_llm", "ahakv@recent=16", "snapkv@window=16"),
    *("rkv", "lazy_eviction", "longflow", "keydiff", "nacl"),
)
MOST = {"random/64": 1400, "desirekv": 1800, "ddks": 1800, "kivi": 3400}
"""Launches of a token of 32 layers, where they are more than the stock model's and two a layer."""


@pytest.mark.parametrize(
    "specs",
    [
        ("caote:h2o/64", "desirekv"),
        pytest.param((*(f"{each}/64" for each in EVICTING), *MOST), marks=pytest.mark.slow),
    ],
)
def test_a_token_launches_little_more_than_the_stock_model(specs):
    found = map(json.loads, not_interpreted("count_launches.py", "full", *specs).splitlines())
    (_, stock), *rows = found
    assert 1250 < stock < 1350 and len(rows) == 1 + len(specs)
    assert not [row for row in rows if not 1000 < row[1] <= MOST.get(row[0], stock + 2 * 32)]


def not_interpreted(script: str, *arguments: str) -> str:
    """Return what a script prints that runs without Triton's interpreter."""
    environment = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
