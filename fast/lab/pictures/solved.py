"""Problems solved on the embedded models, in tables and over the memory."""

from collections.abc import Mapping, Sequence

import numpy as np

from kvlab.fast.lab.drawing import Picture, canvas, curve_style, finish
from kvlab.fast.lab.evaluate.compare import COLUMNS, Comparison
from kvlab.fast.lab.tables import Column, Table, tabulate

Curve = Sequence[tuple[float, float, float, float]]
"""Points of x, share solved, and the ends of its interval."""


def results(comparison: Comparison) -> Table:
    """List what `kvlab.fast.lab.compare` found, refusals left out."""
    method, *figures = COLUMNS
    budget = Column("budget", lambda point: "own rule" if point.budget is None else point.budget)
    points = [point for point in comparison.summary.points if point.refusal is None]
    return tabulate(points, (method, budget, *figures))


def solved_over(curves: Mapping[str, Curve], horizontal: str) -> Picture:
    """Draw shares of problems solved with their intervals, one line per method.

    Args:
        curves: by method.
        horizontal: what x is.
    """
    figure, (axes,) = canvas(height=4.6)
    drawn = {spec: np.array(points, dtype=float).T for spec, points in curves.items() if points}
    for number, (spec, (x, share, low, high)) in enumerate(drawn.items()):
        interval = [share - low, high - share]
        style = {"elinewidth": 0.6, "capsize": 2, "linewidth": 1.4}
        axes.errorbar(x, share, interval, label=spec, **curve_style(number, len(drawn)), **style)
    axes.set(xlabel=horizontal, ylabel="problems solved", ylim=(-0.05, 1.05))
    description = f"Problems solved over {horizontal.partition(',')[0]}, per method."
    return finish(figure, description, legend="below")
