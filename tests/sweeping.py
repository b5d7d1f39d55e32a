"""What the tests of sweeps share."""

from pathlib import Path

from kvlab.fast.lab.sweep.dataset import Dataset, without_timing
from kvlab.fast.lab.sweep.run import RESULTS

SMALL = """
methods = ["full", "h2o", "raas", "nacl"]
budgets = ["40%"]
models = ["reasoner"]
tasks = ["reasoning"]
problems = 2
seeds = [0, 3]
batch = 1
measured = 1
backend = "reference"
pairs = [["h2o", "raas"], ["full", "h2o"]]
"""
"""16 jobs; at 40 % of the mean length, RaaS cannot protect the prompt."""


def results(directory: Path):
    """Return all rows but for the times."""
    return without_timing(Dataset(directory / RESULTS).read())
