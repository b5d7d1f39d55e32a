"""Drawings: one way to make axes, colours, labels and legends.

A finished `Picture` is an SVG whose ink is the colour of the text around it, so that it follows the
reader's light or dark theme.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kvlab.fast.lab.files import named, write_text

if TYPE_CHECKING:  # Matplotlib is a third of a command's time to start, and few commands draw
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#000000"
"""Matplotlib's black; in a picture it becomes the colour of the text around it."""
BLUE = "#1f77b4", "#3182ce"
"""Matplotlib's blue, and the one that is seen on light and dark paper."""
GREY = "0.5"
"""For curves that other curves are compared with."""
RED = "#e5484d"
"""For limits, and for points that a reader should notice, on light and dark paper."""
PIXELS_PER_INCH = 96
NARROW = 4.4
"""Inches that a phone shows without scrolling."""
COLUMN = 3.15
"""Inches of a column of LaTeX's two-column article."""

LIGHT_OR_DARK = (
    "svg{color:#000;background:#fff}"
    "@media (prefers-color-scheme:dark){svg{color:#e6e7ea;background:#1e2129}}"
)
"""Ink and paper of a picture that stands alone."""

OUTSIDE: dict[str, dict[str, Any]] = {
    "right": {"loc": "outside right upper"},
    "below": {"loc": "outside lower center", "ncols": 2},
    "list": {"loc": "outside lower center"},
}


@dataclass(frozen=True)
class Picture:
    """A finished drawing; Jupyter and the site show it."""

    svg: str
    """An ``svg`` element without fixed ink."""
    description: str
    """A text for readers who cannot see the picture."""
    drawn: "Figure | None" = field(default=None, repr=False, compare=False)
    """What it was made of."""

    def _repr_svg_(self) -> str:
        return self.alone

    @property
    def figure(self) -> str:
        """The picture as a part of a page."""
        return f'<figure class="kvlab-picture">{self.svg}</figure>'

    def __repr__(self) -> str:
        return f"Picture({self.description!r})"

    @property
    def on_white(self) -> str:
        """The ``svg`` element in black on white: for a page that is always white."""
        return self.svg.replace('style="', 'style="color: black; background: white; ', 1)

    @property
    def alone(self) -> str:
        """The ``svg`` element for a file, which knows no text around it: light or dark."""
        return self.svg.replace(">", f"><style>{LIGHT_OR_DARK}</style>", 1)

    def save(self, path: Path) -> None:
        """Write the picture as a file of its own; ``.pdf`` in black at 8 points, for a paper."""
        if path.suffix != ".pdf":
            write_text(path, self.alone)
            return
        assert self.drawn is not None
        from matplotlib import rc_context
        from matplotlib.text import Text

        for each in self.drawn.findobj(Text):
            each.set_fontsize(8)  # type: ignore[attr-defined]
        with named(path), rc_context({"pdf.fonttype": 42}):  # journals refuse type 3
            path.parent.mkdir(parents=True, exist_ok=True)
            self.drawn.savefig(path, metadata={"CreationDate": None})


def canvas(
    columns: int = 1, rows: int = 1, width: float = 7.5, height: float = 3.6, **subplots: Any
) -> "tuple[Figure, list[Axes]]":
    """Return an empty drawing, whose width and height are in inches, and its axes, row by row."""
    import matplotlib
    from cycler import cycler
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "kvlab"})
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **subplots)
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelsize=8)
        each.set_prop_cycle(cycler(linestyle=("-", "-.")) * matplotlib.rcParams["axes.prop_cycle"])
    return figure, list(axes.flat)


def name_rows(axes: "Axes", names: Sequence[str]) -> None:
    """Write the names of rows above them, the first at the top: beside them they take its room."""
    axes.set(yticks=[], ylim=(-0.5, len(names)))
    edge = axes.get_yaxis_transform()
    for place, name in enumerate(reversed(names)):
        axes.text(0.01, place + 0.25, name, transform=edge, fontsize=7.5)


def finish(
    figure: "Figure",
    description: str,
    legend: Literal["axes", "right", "below", "list", "none"] = "axes",
) -> Picture:
    """Turn a drawing in matplotlib's default ink into a picture.

    The names of labelled curves stand in the ``axes``, unless they have a legend already;
    ``right``, ``below`` and ``list`` (below, one to a line): outside, once for the whole drawing.
    """
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
        axes.title.set_fontsize(9)
        axes.xaxis.label.set_fontsize(8.5)
        axes.yaxis.label.set_fontsize(8.5)
        labelled, style = axes.get_legend_handles_labels(), {"fontsize": 7.5, "frameon": False}
        if labelled[0] and legend == "axes" and axes.get_legend() is None:
            axes.legend(**style)
        elif labelled[0] and legend in OUTSIDE and not figure.legends:
            figure.legend(*labelled, **OUTSIDE[legend], **style)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    width = figure.get_figwidth() * PIXELS_PER_INCH
    return Picture(_follow_theme(buffer.getvalue(), width, description), description, figure)


def _follow_theme(drawing: str, width: float, description: str) -> str:
    """Return the ``svg`` element alone, with inherited ink, a label, and a width in pixels."""
    drawing = re.sub(r"\A.*?(?=<svg)|<metadata>.*?</metadata>\s*", "", drawing, flags=re.DOTALL)
    drawing = drawing.replace('<g id="', '<g class="')  # several pictures share a page
    drawing = drawing.replace(INK, "currentColor").replace(*BLUE)
    drawing = re.sub(r'(width|height)="[\d.]+pt" ?', "", drawing, count=2)
    opening = (
        f'<svg role="img" aria-label="{escape(description, quote=True)}" fill="currentColor" '
        f'style="width: 100%; max-width: {width:.0f}px; height: auto"'
    )
    return re.sub(r"\n\s*\n", "\n", drawing.replace("<svg", opening, 1)).strip()
