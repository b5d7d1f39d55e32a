"""Problems solved on the embedded models, in tables and over the memory."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvlab.fast.lab.drawing import Picture, canvas, curve_style, finish
from kvlab.fast.lab.evaluate.compare import COLUMNS, Comparison
from kvlab.fast.lab.tables import Column, Table, tabulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = Sequence[tuple[float, float, float, float]]
"""Points of x, share solved, and the ends of its interval."""


def results(comparison: Comparison) -> Table:
    """List what `kvlab.fast.lab.compare` found, refusals left out."""
    method, *figures = COLUMNS
    budget = Column("budget", lambda point: "own rule" if point.budget is None else point.budget)
    points = [point for point in comparison.summary.points if point.refusal is None]
    return tabulate(points, (method, budget, *figures))


MOST_LABELS = 12
"""Methods whose names stand at the ends of their lines; more are named below the drawing."""


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
    if len(drawn) > MOST_LABELS:
        return finish(figure, description, legend="below")
    name_at_ends(axes, {spec: (x[-1], share[-1]) for spec, (x, share, _, _) in drawn.items()})
    return finish(figure, description, legend="none")


def name_at_ends(axes: "Axes", ends: Mapping[str, tuple[float, float]]) -> None:
    """Write names of curves to the right of the axes, beside the ends, none above another."""
    heights = spread_out([share for _, share in ends.values()], -0.02, 1.02)
    for number, ((spec, end), height) in enumerate(zip(ends.items(), heights, strict=True)):
        name, _, options = spec.partition("@")
        style = {"color": curve_style(number, len(ends))["color"], "va": "center"}
        axes.annotate(
            name,
            end,
            (1.03, (height + 0.05) / 1.1),
            textcoords="axes fraction",
            fontsize=8.5,
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": style["color"]},
            **style,
        )
        if options:
            place = (1.03, (height + 0.05) / 1.1 - 0.034)
            axes.text(*place, options, fontsize=5.5, transform=axes.transAxes, **style)


def spread_out(heights: Sequence[float], low: float, high: float) -> list[float]:
    """Move heights apart until all are equally far from each other at least, in their order."""
    gap = min(0.085, (high - low) / max(1, len(heights) - 1))
    order = np.argsort(np.array(heights), kind="stable")
    placed = np.array(heights, dtype=float)
    reach = low - gap
    for number in order:  # upwards: each above the one before
        reach = placed[number] = max(placed[number], reach + gap)
    reach = high + gap
    for number in order[::-1]:  # and down again, where the highest went too far
        reach = placed[number] = min(placed[number], reach - gap)
    return placed.tolist()
