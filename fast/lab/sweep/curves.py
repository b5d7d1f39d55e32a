"""The curves and maps of a report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvlab.fast.lab.drawing import COLUMN, GREY, Picture, canvas, finish
from kvlab.fast.lab.evaluate.controls import is_control
from kvlab.fast.lab.evaluate.pairs import LEVEL, Measure
from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.points import NOTHING, ORACLE
from kvlab.fast.lab.sweep.summary import (
    ACCEPTED,
    ERROR,
    FULL,
    KL,
    LOSS,
    SOLVED,
    Point,
    TaskSummary,
    pooled,
)
from kvlab.reference.methods import base_name, lookup
from kvlab.reference.proofs import PAPERS


def heat_map(found: Sequence[TaskSummary], depths: int) -> Picture:
    """Draw the share of needles found over depth and length, one panel per method and budget."""
    named = [each.method for each in found[0].points]
    shown = {at: own for at, own in pooled(found).items() if at[0] in named}
    across = 4 if len(shown) % 4 == 0 else min(3, len(shown))
    down = -(-len(shown) // across)
    figure, panels = canvas(across, down, 9, 0.6 + 2.4 * down, sharex=True, sharey=True)
    mesh: Any = None
    lengths = [f"{each.mean_length:.0f}" for each in found]
    percent = [f"{100 * share:.0f}" for share in np.linspace(0, 1, depths)]
    for axes, (at, points) in zip(panels, shown.items(), strict=False):
        shares = np.array([[np.mean(p.outcomes[n::depths]) for p in points] for n in range(depths)])
        style: dict[str, Any] = {"cmap": "YlGnBu", "edgecolors": "white", "linewidth": 0.5}
        mesh = axes.pcolormesh(shares, vmin=0, vmax=1, **style)
        axes.set_xticks(np.arange(len(found)) + 0.5, lengths)
        axes.set_yticks(np.arange(depths) + 0.5, percent)
        axes.tick_params(labelsize=7)
        axes.set_ylim(depths, 0)
        nothing = NOTHING if all(each.measures_nothing for each in points) else ""
        method, *more = filter(None, at)
        method = method.replace(",", ",\n")
        share = f"{100 * shares.mean():.0f} % found {nothing}".rstrip()
        axes.set_title(f"{method}\n{': '.join([*more, share])}", fontsize=7)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    figure.supxlabel("tokens", fontsize=9)
    figure.supylabel("depth of the needle, %", fontsize=9)
    bar = figure.colorbar(mesh, ax=panels, shrink=0.7, label="share found")
    bar.outline.set_visible(False)  # type: ignore[attr-defined]
    return finish(figure, "Share of needles found over depth and length, per method.")


@dataclass(frozen=True)
class Quality:
    """What a measure is called in tables and drawings, and where a point has it."""

    measure: Measure
    title: str
    column: str
    """The column of ``tables.toml`` that the first table shows, so that no other does."""
    interval: Callable[[Point], Interval | None]
    scale: float = 1.0


def _perplexity(point: Point) -> Interval | None:
    if point.method == FULL and point.perplexity is not None:
        return Interval(*[point.perplexity] * 3)  # it is the yardstick
    return point.perplexity_interval


QUALITIES = (
    Quality(SOLVED, "Problems solved, %", "solved", lambda point: point.interval, 100),
    Quality(ACCEPTED, "Tokens accepted, %", "accepted", lambda point: point.accepted, 100),
    Quality(LOSS, "Perplexity", "perplexity", _perplexity),
    Quality(ERROR, "Output error", "error", lambda point: point.measured.get("output_error")),
    Quality(KL, "KL from the full cache, nats", "KL", lambda point: point.measured.get("kl")),
)
"""What can be drawn; those that rank methods come first."""

DRAWN = f"with {LEVEL:.0%} intervals; dotted: the full cache"
FRONT = "grey band: what no method beats with fewer bytes"


def _panels(count: int, methods: Sequence[str], narrow: bool) -> tuple[Any, list[Any]]:
    """Return a drawing of some panels: beside each other, or stacked in a column of a paper."""
    if narrow:
        height = min(6.8, 0.5 + 1.8 * count + 0.17 * len(methods))  # inches of a page
        return canvas(1, count, COLUMN, height, sharex=True)
    return canvas(count, width=max(7.5, 4.2 * count), height=5.2)


def over_budget(
    summary: TaskSummary, quality: Quality, methods: Sequence[str], narrow: bool = False
) -> Picture:
    """Draw what ranks methods over the budget (LazyEviction Fig. 5)."""
    figure, (axes,) = _panels(1, methods, narrow)

    def size(point: Point) -> float | None:
        return None if point.budget is None else 100 * point.budget / summary.mean_length

    _draw_curves(axes, summary, quality, methods, size)
    axes.set_xlabel("budget, % of prompt and solution")
    title = f"{quality.title} over the budget, {DRAWN}."
    return finish(figure, title, legend="list" if narrow else "below")


def over_memory(summary: TaskSummary, methods: Sequence[str], narrow: bool = False) -> Picture:
    """Draw every measure over the bytes of keys and values."""

    def size(point: Point) -> float | None:
        nbytes = point.mean("nbytes")
        return None if nbytes is None else nbytes / 1024

    ran = [point for point in summary.points if point.method in methods and point.method != FULL]
    shown = [quality for quality in QUALITIES if any(map(quality.interval, ran))]
    figure, panels = _panels(len(shown), methods, narrow)
    for axes, quality in zip(panels, shown, strict=True):
        _draw_curves(axes, summary, quality, methods, size)
        points = [point for point in ran if not is_reference(point.method)]
        front = front_of([(size(point), quality.interval(point)) for point in points], quality)
        axes.plot(*front, color=GREY, linewidth=6, alpha=0.25, zorder=0)
        if not narrow or axes is panels[-1]:
            axes.set_xlabel("most of keys and values, KiB")
    title = f"Quality over memory, {DRAWN}; {FRONT}."
    return finish(figure, title, legend="list" if narrow else "below")


def front_of(
    points: Sequence[tuple[float | None, Interval | None]], quality: Quality
) -> tuple[list[float], list[float]]:
    """Return sizes and means of the points that none of at most their size is better than."""
    sign = quality.measure.sign
    known = [(x, -sign * value.mean) for x, value in points if x is not None and value is not None]
    front: list[tuple[float, float]] = []
    for x, badness in sorted(known):
        if not front or badness < front[-1][1]:
            front.append((x, badness))
    return [x for x, _ in front], [-sign * quality.scale * badness for _, badness in front]


def _draw_curves(
    axes: Any,
    summary: TaskSummary,
    quality: Quality,
    methods: Sequence[str],
    size: Callable[[Point], float | None],
) -> None:
    """Draw a measure over a size, one line per method."""
    colours = "012345689"  # number 7 is grey
    for number, method in enumerate((FULL, *(spec for spec in methods if spec != FULL)), start=-1):
        points = [point for point in summary.points if point.method == method]
        found = [(size(point), quality.interval(point)) for point in points]
        if method == FULL:
            for _, value in found:
                if value is not None:
                    level = quality.scale * value.mean
                    axes.axhline(level, color=GREY, linestyle=":", label="full cache")
            continue
        known = [(x, *vars(y).values()) for x, y in found if x is not None and y is not None]
        if known:
            places, *values = np.array(sorted(known)).T
            mean, low, high = (quality.scale * each for each in values)
            style = {"color": f"C{colours[number % 9]}", "marker": "os^vD<>p*hX8P"[number % 13]}
            style |= {"linestyle": "-" if number < 9 else "-.", "label": method}
            style |= {"linewidth": 2.0 if is_of_the_papers(method) else 0.9}
            if is_reference(method):
                style |= {"color": GREY, "linestyle": "--"}
            axes.errorbar(places, mean, [mean - low, high - mean], markersize=4, capsize=2, **style)
    axes.set_ylabel(quality.title.replace("cache, ", "cache,\n"))
    if quality.scale == 100:
        axes.set_ylim(-5, 105)


def is_reference(spec: str) -> bool:
    """Say whether a method is only there for others to be compared with."""
    return spec == ORACLE or is_control(spec)


def is_of_the_papers(spec: str) -> bool:
    """Say whether a method, or the method that wraps it, comes from one of the four papers."""
    if spec == ORACLE:
        return False
    papers = {lookup(paper).source for paper in PAPERS}
    return lookup(base_name(spec)).source in papers
