"""Problems solved on the embedded models, as a table."""

from collections.abc import Collection

from kvlab.fast.lab.sweep.compare import COLUMNS
from kvlab.fast.lab.sweep.summary import TaskSummary
from kvlab.fast.lab.tables import Column, Table, tabulate


def results(
    found: TaskSummary, specs: Collection[str] = (), budgets: Collection[str] = ()
) -> Table:
    """List what a sweep or `kvlab.fast.lab.compare` found, refusals left out.

    Args:
        found: one task.
        specs: methods; default all.
        budgets: as the sweep states them; default all.
    """
    method, _, *figures = COLUMNS
    budget = Column("budget", lambda point: "own rule" if point.budget is None else point.budget)
    entries = {found.budgets[text] for text in budgets or found.budgets} | {None}
    points = [
        point
        for point in found.points
        if point.refusal is None and point.method in (specs or {point.method})
        if point.budget in entries
    ]
    return tabulate(points, (method, budget, *figures))
