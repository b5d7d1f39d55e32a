"""Old names of `kvlab.fast.lab.reports` and `kvlab.fast.lab.drawing`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvlab.fast.lab.drawing import canvas, curve_style, finish
from kvlab.fast.lab.reports import Drawing, Heading, Text, write_html, write_page
from kvlab.fast.lab.tables import Table

__all__ = ["TablePage", "color", "plot", "svg", "write_page"]


@dataclass(frozen=True)
class TablePage:
    """One table, and drawings below it."""

    title: str
    introduction: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    plots: Sequence[tuple[str, str]]
    """Titles and drawings in SVG."""

    def write(self, path: Path) -> None:
        """Write the page; a file of that name is replaced."""
        drawings = [Drawing("", title, drawing) for title, drawing in self.plots]
        table = Table(self.columns, self.rows)
        blocks = (Heading(self.title, 1), Text(self.introduction), table, Text(self.caption))
        write_html([*blocks, *drawings], path)


def plot() -> tuple[Figure, Axes]:
    """Return an empty drawing."""
    figure, (axes,) = canvas(width=9, height=5)
    return figure, axes


def color(number: int, of: int) -> Any:
    """Return the colour of one of several curves."""
    return curve_style(number, of)["color"]


def svg(figure: Figure) -> str:
    """Finish a drawing with a legend beside it."""
    first = figure.axes[0]
    description = f"{first.get_ylabel()} over {first.get_xlabel()}"
    return finish(figure, description, legend="right").on_white
