"""What sweeps and other commands found: read from ``results/``, and as a table."""

import json
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.points import marked_budget
from kvlab.fast.lab.sweep.compare import COLUMNS
from kvlab.fast.lab.sweep.summary import TaskSummary, summarise
from kvlab.fast.lab.tables import Column, Table, tabulate

RESULTS = Path(__file__).parent / "results"

REAL = "smollm2"
"""The model that reads English."""


@cache
def stored_summary(name: str) -> TaskSummary:
    """Return the summary of a sweep (``kvlab sweep SWEEP.toml --out DIRECTORY`` repeats it)."""
    from kvlab.fast.lab.sweep.run import read_stored  # needs pyarrow

    (summary,) = summarise(read_stored(RESULTS / name))
    return summary


@cache
def stored_file(name: str) -> dict[str, Any]:
    """Return a file as it was written."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def results(
    found: TaskSummary, specs: Collection[str] = (), budgets: Collection[str] = ()
) -> Table:
    """List what a sweep or `kvlab.fast.lab.compare` found, refusals left out.

    Args:
        found: one task.
        specs: methods, and controls that the sweep added; default all methods.
        budgets: as the sweep states them; default all.
    """
    method, _, *figures = COLUMNS
    budget = Column("budget", lambda point: marked_budget(point) or "own rule")
    entries = {found.budgets[text] for text in budgets or found.budgets} | {None}
    points = [
        point
        for point in ((*found.points, *found.controls) if specs else found.points)
        if point.refusal is None and point.method in (specs or {point.method})
        if point.budget in entries
    ]
    return tabulate(points, (method, budget, *figures))


def spread(interval: Interval, form: str = ".3g") -> str:
    """Write a mean and its interval, three numbers in the same form."""
    return f"{interval.mean:{form}} ({interval.low:{form}} to {interval.high:{form}})"
