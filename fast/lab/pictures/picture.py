"""A drawing as SVG whose ink is the colour of the text around it."""

import io
import re
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "kvlab"})

INK = "#000000"
"""Matplotlib's black; in a picture it becomes the colour of the text around it."""

PIXELS_PER_INCH = 96


@dataclass(frozen=True)
class Picture:
    """A finished drawing.

    Jupyter and the site show it; a script does not.
    """

    svg: str
    """An ``svg`` element without fixed ink."""
    description: str
    """What is to be seen, for readers who do not see it."""

    def _repr_html_(self) -> str:
        """Return what Jupyter shows."""
        return f'<figure class="kvlab-picture">{self.svg}</figure>'

    def __repr__(self) -> str:
        """Return the description."""
        return f"Picture({self.description!r})"


def canvas(
    columns: int = 1, rows: int = 1, width: float = 7.5, height: float = 3.6, **subplots: Any
) -> tuple[Figure, list[Axes]]:
    """Return an empty drawing and its axes, row by row.

    Args:
        columns: of axes.
        rows: of axes.
        width: of the whole drawing, in inches.
        height: of the whole drawing, in inches.
        subplots: what `matplotlib.figure.Figure.subplots` takes besides.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **subplots)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelsize=8)
    return figure, list(axes.flat)


def finish(figure: Figure, description: str, legend: bool = True) -> Picture:
    """Turn a drawing into a picture.

    Args:
        figure: the drawing, in matplotlib's default ink.
        description: what is to be seen, for readers who do not see it.
        legend: whether axes with labelled curves get a legend.
    """
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
        axes.title.set_fontsize(9)
        axes.xaxis.label.set_fontsize(8.5)
        axes.yaxis.label.set_fontsize(8.5)
        if legend and axes.get_legend_handles_labels()[0] and axes.get_legend() is None:
            axes.legend(fontsize=7.5, frameon=False)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    width = figure.get_figwidth() * PIXELS_PER_INCH
    return Picture(follow_theme(buffer.getvalue(), width, description), description)


def follow_theme(drawing: str, width: float, description: str) -> str:
    """Return the ``svg`` element alone, with inherited ink, a label, and a width in pixels."""
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>\s*", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'<g id="[^"]*"', "<g", drawing)  # several pictures share a page
    drawing = drawing.replace(INK, "currentColor")
    drawing = re.sub(r'(width|height)="[\d.]+pt" ?', "", drawing, count=2)
    opening = (
        f'<svg role="img" aria-label="{escape(description, quote=True)}" fill="currentColor" '
        f'style="width: 100%; max-width: {width:.0f}px; height: auto"'
    )
    return re.sub(r"\n\s*\n", "\n", drawing.replace("<svg", opening, 1)).strip()
