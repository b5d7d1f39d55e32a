"""HTML pages that need no network, and the drawings in them."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvlab.fast.lab.files import write_text

matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "kvlab"})


@dataclass(frozen=True)
class TablePage:
    """One table, and drawings below it."""

    title: str
    introduction: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """A row that is shorter than the columns says in its second cell why there are no figures."""
    caption: str
    plots: Sequence[tuple[str, str]]
    """Titles and drawings in SVG."""

    def write(self, path: Path) -> None:
        """Write the page; a file of that name is replaced."""
        plots = [(title, Markup(drawing)) for title, drawing in self.plots]
        facts = {**vars(self), "plots": plots}
        write_page(path, "tables.html.jinja", page=facts)


def write_page(path: Path, template: str, **content: Any) -> None:
    """Fill a template of ``kvlab/fast/lab/templates``; all but `Markup` is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kvlab.fast.lab", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    html = environment.get_template(template).render(**content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, html)


def plot() -> tuple[Figure, Axes]:
    """Return an empty drawing."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    return figure, figure.add_subplot()


def color(number: int, of: int) -> tuple[float, float, float, float]:
    """Return the colour of one of several curves."""
    palette = matplotlib.colormaps["tab10" if of <= 10 else "tab20"]
    return palette(number % palette.N)


def svg(figure: Figure) -> str:
    """Finish a drawing with a grid and a legend beside it."""
    for axes in figure.axes:
        axes.grid(alpha=0.25)
    if figure.axes[0].get_legend_handles_labels()[0]:
        figure.legend(
            *figure.axes[0].get_legend_handles_labels(),
            loc="outside right upper",
            fontsize=7,
            frameon=False,
        )
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    drawing = buffer.getvalue()
    return drawing[drawing.index("<svg") :]
