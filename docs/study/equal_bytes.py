"""Eviction, quantisation and both, at equal bytes: points, their Pareto front, chart and table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvlab.fast.lab.drawing import GREY, INK, Picture, canvas, finish
from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.sweep.summary import CONTROL, FULL, TaskSummary
from kvlab.fast.lab.tables import Bold, Cell, Table
from kvlab.reference import methods
from kvlab.reference.methods import base_name, takes_budget
from study.contrasts import REAL, stored_summary
from study.side_by_side import nats, spread, stored

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALONE = (
    "kivi@key_bits=4,value_bits=4,residual=32",
    "h2o",
    "caote:h2o",
    "lazy_eviction@threshold=0.01",
    "random@recent=16",
)
"""Methods of the study that are drawn: each evicts alone or quantises alone."""
BUDGETS = ("20%", "30%", "50%", "70%")
"""Budgets of the study that are drawn."""
ALONE_REAL = ("full", "h2o", "caote:h2o", "streaming_llm", "random@recent=32")
"""Methods without a precision whose perplexities on the real model are drawn."""
KINDS = {
    "eviction alone": ("tab:blue", "o"),
    "quantisation alone": ("tab:orange", "s"),
    "both": ("tab:green", "D"),
    "at random, the control": (GREY, "x"),
    "full cache": (INK, "*"),
}
"""Colour and marker of each kind of point."""
BELOW_FULL = "loss per token less the full cache's, nats (less is better)"


@dataclass(frozen=True)
class Place:
    """A method at a budget: what it holds, and how well the model then works."""

    method: str
    budget: str
    """As it was stated; empty for methods that take none."""
    share: float
    """Bytes of keys and values, scales and norms included, over the full cache's."""
    quality: Interval
    """Share of problems solved, or nats per token lost."""
    entries: float
    """Entries per KV head."""

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        if base_name(self.method) == CONTROL:
            return "at random, the control"
        if self.method == FULL:
            return "full cache"
        if not takes_budget(self.method):
            return "quantisation alone"
        coded = getattr(methods.parse(self.method), "precision", None)
        return "eviction alone" if coded in (None, FULL) else "both"

    @property
    def label(self) -> str:
        """What stands beside the point."""
        name, _, options = self.method.partition("@")
        coded = [each[10:] for each in options.split(",") if each.startswith("precision=")]
        words = [*([] if name == FULL and coded else [name]), *coded, self.budget]
        return " ".join(filter(None, words))


@dataclass(frozen=True)
class Panel:
    """One model."""

    title: str
    axis: str
    """Label of the axis of `Place.quality`."""
    places: tuple[Place, ...]
    more: bool
    """Whether more of it is better."""

    @property
    def front(self) -> tuple[Place, ...]:
        """The Pareto front, fewest bytes first: no other place is as small and as good.

        Of places with equal bytes and equal means the first is taken.
        """
        sign = -1 if self.more else 1
        found: list[Place] = []
        for place in sorted(self.places, key=lambda each: (each.share, sign * each.quality.mean)):
            if not found or sign * place.quality.mean < sign * found[-1].quality.mean:
                found.append(place)
        return tuple(found)


# --- what is stored ------------------------------------------------------------------------------


def read_panels() -> tuple[Panel, ...]:
    """Return both models' points from the results in the package.

    Raises:
        ValueError: if a file of results is damaged.
    """
    alone, coded = stored_summary("study"), stored_summary("equal_bytes")
    chosen = [point for point in alone.points if point.method in ALONE]
    budgets = {alone.budgets[text] for text in BUDGETS}
    kept = [point.method for point in chosen if point.budget in {None, *budgets}]
    places = places_of(alone, [FULL, *kept], budgets)
    places += places_of(coded, [p.method for p in coded.points if p.method != FULL])
    many, few = (found.point(FULL, None).problems for found in (alone, coded))
    title = f"Jump programs, 0.8 million parameters: {many} problems, {few} with a precision"
    jumps = Panel(title, "problems solved, % (more is better)", tuple(places), more=True)
    return jumps, real_panel()


def places_of(
    found: TaskSummary, specs: Sequence[str], budgets: set[int] | None = None
) -> list[Place]:
    """Return the points of a sweep that have figures; ``budgets`` None takes all."""
    texts: dict[int | None, str] = {entries: text for text, entries in found.budgets.items()}
    whole = found.point(FULL, None).mean("nbytes")
    places = []
    for point in found.points:
        nbytes, entries = point.mean("nbytes"), point.mean("entries")
        wanted = point.method in specs and (
            budgets is None or point.budget is None or point.budget in budgets
        )
        if wanted and whole and nbytes is not None and entries is not None and point.interval:
            budget = texts.get(point.budget, "").replace("%", " %")
            share = nbytes / whole
            places.append(Place(point.method, budget, share, point.interval, entries))
    return places


def real_panel() -> Panel:
    """Return SmolLM2's points: methods alone, and those of a second file with precisions.

    Raises:
        ValueError: if the files are of different texts.
    """
    alone, coded = stored(f"perplexity_{REAL}"), stored(f"equal_bytes/{REAL}")
    if coded["tokens"] != alone["tokens"]:
        raise ValueError(f"equal_bytes has {coded['tokens']} tokens, not {alone['tokens']}")
    places = [each for each in places_of_rows(alone) if each.method in ALONE_REAL]
    places += [each for each in places_of_rows(coded) if "precision=" in each.method]
    length = alone["mean_length"]
    title = f"SmolLM2, 135 million parameters: {alone['passages']} windows of {length:.0f} tokens"
    return Panel(title, BELOW_FULL, tuple(places), more=False)


def places_of_rows(found: Mapping[str, Any]) -> list[Place]:
    """Return what ``kvlab perplexity --json`` wrote as points; its first row is the full cache.

    Old results without bytes have no precisions, so that the share of entries stands for bytes.
    """
    full, places = found["rows"][0], []
    for row in found["rows"]:
        if row["refusal"] is None:
            counted = "nbytes" if "nbytes" in row else "entries"
            text = "" if row["budget"] is None else f"{row['budget'] / found['mean_length']:.0%}"
            share, budget = row[counted] / full[counted], text.replace("%", " %")
            places.append(Place(row["method"], budget, share, nats(row), row["entries"]))
    return places


# --- chart and table -----------------------------------------------------------------------------


def chart(panels: Sequence[Panel]) -> Picture:
    """Draw quality over bytes, a panel per model; a line joins each Pareto front."""
    figure, several = canvas(rows=len(panels), height=4.4 * len(panels), width=7.5)
    for axes, panel in zip(several, panels, strict=True):
        draw(axes, panel)
    description = "Quality over bytes for eviction, quantisation and both, with the Pareto front."
    return finish(figure, description, legend="below")


def draw(axes: "Axes", panel: Panel) -> None:
    """Draw one model."""
    scale = 100 if panel.more else 1
    front = panel.front

    def coordinates(places: Sequence[Place], end: str = "mean") -> list[list[float]]:
        """Return shares of bytes in percent, and an end of the intervals of quality."""
        shares = [100 * place.share for place in places]
        return [shares, [scale * getattr(place.quality, end) for place in places]]

    axes.step(
        *coordinates(front), where="post", color=INK, linewidth=0.8, label="Pareto front", zorder=1
    )
    for kind, (color, marker) in KINDS.items():
        some = [place for place in panel.places if place.kind == kind]
        shares, means = coordinates(some)
        reach = [np.abs(np.subtract(coordinates(some, end)[1], means)) for end in ("low", "high")]
        style = {"color": color, "marker": marker, "linestyle": "none", "markersize": 5}
        axes.errorbar(shares, means, reach, elinewidth=0.6, capsize=2, label=kind, **style)
    for place in front:
        if place.method == FULL:
            continue
        at = (100 * place.share, scale * place.quality.mean)
        axes.annotate(place.label, at, (5, -9), textcoords="offset points", fontsize=7)
    axes.set_xscale("log")
    ticks = (5, 10, 20, 30, 50, 70, 100)
    axes.set_xticks(ticks, [f"{tick} %" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set(title=panel.title, xlabel="bytes, of the full cache at 16 bits", ylabel=panel.axis)
    if not panel.more:
        axes.set_yscale("symlog", linthresh=0.01)
        axes.set_ylim(bottom=min(-0.003, *(place.quality.low for place in panel.places)))
        ticks = (0, 0.01, 0.1, 1)
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])


def table(panel: Panel) -> Table:
    """List the points of a panel, fewest bytes first; those of the front stand out."""
    columns = ("method", "kind", "budget", "bytes, %", panel.axis.partition(" (")[0], "entries")
    front = panel.front
    rows = [
        cells(place, panel.more, place in front)
        for place in sorted(panel.places, key=lambda each: each.share)
    ]
    return Table(columns, rows, words=2)


def cells(place: Place, more: bool, stands_out: bool) -> list[Cell]:
    """Write one point."""
    if more:
        values = place.quality.mean, place.quality.low, place.quality.high
        written = "{:.1f} ({:.1f}–{:.1f})".format(*(100 * value for value in values))
    else:
        written = spread(place.quality, "+.3f")
    held, entries = f"{100 * place.share:.1f}", f"{place.entries:.0f}"
    quality = Bold(written) if stands_out else written
    return [place.method, place.kind, place.budget, held, quality, entries]
