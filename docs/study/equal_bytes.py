"""Eviction, quantisation and both, at equal bytes: points, their Pareto front, and a chart."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvlab.fast.lab.drawing import GREY, INK, Picture, canvas, finish
from kvlab.fast.lab.evaluate.controls import is_control
from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.sweep.summary import FULL, TaskSummary
from kvlab.reference import methods
from kvlab.reference.methods import takes_budget
from study.stored import stored_summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALONE = (
    "full",
    "kivi@key_bits=4,value_bits=4,residual=32",
    "h2o",
    "caote:h2o",
    "lazy_eviction@threshold=0.01",
    "random:h2o",
)
"""Methods of the study that are drawn: each evicts alone or quantises alone."""
BUDGETS = ("", "30 %", "50 %", "70 %")
"""Budgets of the study that are drawn; of some methods their own rule."""
ALONE_REAL = ("full", "h2o", "caote:h2o", "streaming_llm", "random:h2o")
"""Methods without a precision whose perplexities on the real model are drawn."""
KINDS = {
    "eviction alone": ("tab:blue", "o"),
    "quantisation alone": ("tab:orange", "s"),
    "both": ("tab:green", "D"),
    "at random, the control": (GREY, "x"),
    "full cache": (INK, "*"),
}
"""Colour and marker of each kind of point."""


@dataclass(frozen=True)
class Place:
    """A method at a budget: what it holds, and how well the model then works."""

    method: str
    budget: str
    """Empty for methods that take none."""
    share: float
    """Bytes of keys and values, scales and norms included, over the full cache's."""
    quality: Interval
    """Share of problems solved, or nats per token lost."""

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        if is_control(self.method):
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
    places: Sequence[Place]
    more: bool
    """Whether more of it is better."""

    @property
    def front(self) -> list[Place]:
        """The Pareto front, fewest bytes first: no other place is as small and as good."""
        sign = -1 if self.more else 1
        found: list[Place] = []
        for place in sorted(self.places, key=lambda each: (each.share, sign * each.quality.mean)):
            if not found or sign * place.quality.mean < sign * found[-1].quality.mean:
                found.append(place)
        return found


def read_panels() -> tuple[Panel, Panel]:
    """Return both models' points from the stored results."""
    alone, coded = stored_summary("study"), stored_summary("equal_bytes")
    places = [p for p in places_of(alone) if p.method in ALONE and p.budget in BUDGETS]
    places += [place for place in places_of(coded) if place.method != FULL]
    many, few = (found.point(FULL, None).problems for found in (alone, coded))
    title = f"Jump programs, 0.8 million parameters: {many} problems, {few} with a precision"
    jumps = Panel(title, "problems solved, % (more is better)", places, more=True)

    real = stored_summary("loss_smollm2")
    places = [p for p in places_of(real) if p.method in ALONE_REAL or "precision=" in p.method]
    windows = f"{real.point(FULL, None).problems} windows of {real.mean_length:.0f} tokens"
    title = f"SmolLM2, 135 million parameters: {windows}"
    axis = "loss per token less the full cache's, nats (less is better)"
    return jumps, Panel(title, axis, places, more=False)


def places_of(found: TaskSummary) -> Iterator[Place]:
    """Yield the points of a sweep, and of its controls, that have figures."""
    texts: dict[int | None, str] = {entries: text for text, entries in found.budgets.items()}
    whole = found.point(FULL, None).mean("nbytes")
    for point in (*found.points, *found.controls):
        nbytes = point.mean("nbytes")
        quality = point.interval or point.nats
        if point.method == FULL and point.losses:
            quality = Interval(0.0, 0.0, 0.0)
        if whole and nbytes is not None and quality:
            budget = texts.get(point.budget, "").replace("%", " %")
            yield Place(point.method, budget, nbytes / whole, quality)


def chart(panels: Sequence[Panel]) -> Picture:
    """Draw quality over bytes, a panel per model; a line joins each Pareto front."""
    figure, several = canvas(rows=len(panels), height=4.4 * len(panels), width=7.5)
    for axes, panel in zip(several, panels, strict=True):
        _draw(axes, panel)
    description = "Quality over bytes for eviction, quantisation and both, with the Pareto front."
    return finish(figure, description, legend="below")


def _draw(axes: "Axes", panel: Panel) -> None:
    scale = 100 if panel.more else 1
    front = np.array([(100 * p.share, scale * p.quality.mean) for p in panel.front])
    line = {"color": INK, "linewidth": 0.8, "label": "Pareto front", "zorder": 1}
    axes.step(*front.T, where="post", **line)
    for kind, (color, marker) in KINDS.items():
        some = [place for place in panel.places if place.kind == kind]
        shares = [100 * place.share for place in some]
        low, mean, high = (
            scale * np.array([getattr(place.quality, end) for place in some])
            for end in ("low", "mean", "high")
        )
        style = {"color": color, "marker": marker, "linestyle": "none", "markersize": 5}
        reach = abs(low - mean), abs(high - mean)
        axes.errorbar(shares, mean, reach, elinewidth=0.6, capsize=2, label=kind, **style)
    for place, at in zip(panel.front, front, strict=True):
        if place.method != FULL:
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
