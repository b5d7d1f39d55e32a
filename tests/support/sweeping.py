"""What the tests of sweeps share."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvlab.fast.lab.sweep.design import Sweep, make_sweep
from kvlab.fast.lab.sweep.jobs import Result
from kvlab.fast.lab.sweep.run import read_rows
from kvlab.fast.lab.sweep.summary import Point

SMALL = """
methods = ["full", "h2o", "raas", "nacl"]
budgets = ["40%"]
models = ["jumps"]
tasks = ["jumps@fewest=3,most=4"]
problems = 2
seeds = [0, 3]
batch = 1
measured = 1
backend = "reference"
pairs = [["h2o", "raas"], ["full", "h2o"]]
"""
"""16 jobs; at 40 % of the mean length, RaaS cannot protect the prompt."""


def short_sweep(**asked: Any) -> Sweep:
    """Return a sweep: H2O on a short program, unless something else is asked for."""
    usual = {"methods": ["h2o"], "budgets": [40], "problems": 1, "models": ["jumps"]}
    return make_sweep(usual | {"tasks": ["jumps@fewest=3,most=4"]} | asked)


def results(directory: Path):
    """Return all rows in one order, but for the times."""
    rows = [replace(row, seconds_per_token=None) for row in read_rows(directory)]
    return sorted(rows, key=lambda row: (row.job, row.problem))


def made(method: str, budget: int | None, after_eviction=None, **figures) -> Point:
    """Return a point from the figures of its problems, by their names in `Result`."""
    known = {"job": "", "model": "", "task": "", "seed": 0, "method": method, "budget": budget}
    found = tuple(
        Result(**known, problem=number, **dict(zip(figures, values, strict=True)))
        for number, values in enumerate(zip(*figures.values(), strict=True))
    )
    return Point(method=method, budget=budget, results=found, after_eviction=after_eviction)


COMMAND = """
import sys
from kvlab.fast.lab.start import main
sys.argv[0] = "kvlab"
main()
"""


@contextmanager
def kvlab(*arguments: str, before: str = "", **environment: str) -> Iterator[subprocess.Popen]:
    """Start the command as a user does, after some lines of Python; what still runs is ended."""
    with subprocess.Popen(
        [sys.executable, "-c", before + COMMAND, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(*arguments: str, **environment: str) -> str:
    """Run the command to its end, and return what it said on stderr."""
    with kvlab(*arguments, **environment) as process:
        _, said = process.communicate(timeout=900)
    assert process.returncode == 0, said
    return said


class Gate:
    """Holds all jobs of RaaS, in whatever process, until it is opened; others are done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def holding(self, module: str) -> str:
        """Return lines that put the gate before the jobs of a module, before the command runs."""
        return f"""
import os, time
from pathlib import Path
from kvlab.fast.lab.sweep import {module}, jobs

attempt_at_once = jobs.attempt

def attempt(job):
    gate = Path({str(self.folder)!r})
    if job.method == "raas":
        (gate / str(os.getpid())).touch()
        while not (gate / "open").exists():
            time.sleep(0.02)
    return attempt_at_once(job)

{module}.attempt = attempt
"""

    def wait_until_held(self, process: subprocess.Popen, workers: int = 1) -> None:
        """Wait until so many workers wait at the gate."""
        wait_until(lambda: process.poll() is not None or len([*self.folder.iterdir()]) == workers)
        assert process.poll() is None

    def open(self) -> None:
        """Let all jobs go on."""
        (self.folder / "open").touch()


def wait_until(true, seconds: float = 900) -> None:
    """Wait for something that happens for certain; the limit only ends what hangs."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError("nothing happened")
        time.sleep(0.02)
