"""Shares of problems solved as curves, one per method."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from kvlab.fast.lab.drawing import MARKERS, Picture, canvas, finish
from kvlab.fast.lab.sweep.plan import ORACLE
from kvlab.reference import methods
from kvlab.reference.methods import base_name
from kvlab.reference.proofs import PAPERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = Sequence[tuple[float, float, float, float]]
"""Points of x, share solved, and the ends of its interval."""

MOST_LABELS = 14
"""Methods whose names stand at the ends of their lines; more are named below the drawing."""
COLOURS = (
    *("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink"),
    *("tab:olive", "tab:cyan", "teal", "goldenrod", "orchid"),
)
"""Grey is left to controls."""
MOST_TICKS = 8
"""Up to so many places of x, each one gets a label."""


def solved_over(curves: Mapping[str, Curve], horizontal: str, full: float | None = None) -> Picture:
    """Draw shares of problems solved with their intervals, one line per method.

    Args:
        curves: by method.
        horizontal: what x is.
        full: share that the full cache solves, drawn as a line.
    """
    figure, (axes,) = canvas(height=5.2)
    drawn = {spec: np.array(points, dtype=float).T for spec, points in curves.items() if points}
    styles = _curve_styles(list(drawn))
    for spec, (x, share, low, high) in drawn.items():
        interval = [100 * (share - low), 100 * (high - share)]
        style = {"elinewidth": 0.6, "capsize": 2, "markersize": 4, **styles[spec]}
        axes.errorbar(x, 100 * share, interval, label=spec, **style)
    if full is not None:
        axes.axhline(100 * full, color="black", linewidth=0.6, linestyle=(0, (1, 3)))
        place = (0.01, 100 * full + 1)
        axes.annotate("full cache", place, xycoords=("axes fraction", "data"), fontsize=7)
    axes.set(xlabel=horizontal, ylabel="problems solved, %", ylim=(-5, 105))
    places = sorted({float(place) for x, *_ in drawn.values() for place in x})
    if len(places) <= MOST_TICKS:
        axes.set_xticks(places, [f"{place:.0f}" for place in places])
    description = f"Problems solved over {horizontal.partition(',')[0]}, per method."
    if len(drawn) > MOST_LABELS:
        return finish(figure, description, legend="below")
    ends = {spec: (float(x[-1]), float(share[-1])) for spec, (x, share, _, _) in drawn.items()}
    _name_at_ends(axes, ends, {spec: style["color"] for spec, style in styles.items()})
    return finish(figure, description, legend="none")


def _curve_styles(specs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return how each method is drawn: the four papers' thick, the others thin, controls grey.

    The oracle and eviction at random are controls: they are dashed, in black and grey.
    """
    styles: dict[str, dict[str, Any]] = {}
    coloured = [spec for spec in specs if spec != ORACLE and base_name(spec) != "random"]
    for number, spec in enumerate(coloured):
        width = 2.0 if is_of_the_papers(spec) else 0.9
        color, marker = (each[number % len(each)] for each in (COLOURS, MARKERS))
        styles[spec] = {"color": color, "marker": marker, "linewidth": width}
    if ORACLE in specs:
        styles[ORACLE] = {"color": "black", "linestyle": "--", "linewidth": 1.0}
    for spec, dashes in zip(
        (spec for spec in specs if spec not in styles), cycle(("--", ":", "-."))
    ):
        styles[spec] = {"color": "0.5", "linestyle": dashes, "linewidth": 1.4}
    return styles


def is_of_the_papers(spec: str) -> bool:
    """Say whether a method, or the method wrapped around it, comes from one of the four papers."""
    if spec == ORACLE:
        return False
    sources = {name: facts["source"] for name, facts in methods.describe().items()}
    return sources[base_name(spec)] in {sources[paper] for paper in PAPERS}


def _name_at_ends(
    axes: "Axes", ends: Mapping[str, tuple[float, float]], colors: Mapping[str, Any]
) -> None:
    """Write names of curves to the right of the axes, beside the ends, none above another."""
    heights = _spread_out([share for _, share in ends.values()], -0.02, 1.02)
    for (spec, (x, share)), height in zip(ends.items(), heights, strict=True):
        name, _, options = spec.partition("@")
        style = {"color": colors[spec], "va": "center"}
        place = (1.05, (height + 0.05) / 1.1)
        line = {"arrowstyle": "-", "linewidth": 0.4, "color": colors[spec], "relpos": (0, 0.5)}
        axes.annotate(
            name,
            (x, 100 * share),
            place,
            textcoords="axes fraction",
            fontsize=8.5,
            arrowprops={**line, "shrinkA": 0, "shrinkB": 3},
            **style,
        )
        if options:
            below = (place[0], place[1] - 0.032)
            axes.text(*below, options, fontsize=6, transform=axes.transAxes, **style)


def _spread_out(heights: Sequence[float], low: float, high: float) -> list[float]:
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
