"""Problems solved on the embedded models, as a table."""

from kvlab.fast.lab.sweep.compare import COLUMNS, Comparison
from kvlab.fast.lab.tables import Column, Table, tabulate


def results(comparison: Comparison) -> Table:
    """List what `kvlab.fast.lab.compare` found, refusals left out."""
    method, _, *figures = COLUMNS
    budget = Column("budget", lambda point: "own rule" if point.budget is None else point.budget)
    points = [point for point in comparison.summary.points if point.refusal is None]
    return tabulate(points, (method, budget, *figures))
