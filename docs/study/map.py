"""The map: every score under every protection, on both models.

    python -m study.map docs

writes the pictures, and what each knob explains as ``map.json``.
"""

import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from jaxtyping import Float

from kvlab.fast.lab.drawing import NARROW, Picture, canvas, finish
from kvlab.fast.lab.evaluate.controls import is_significant
from kvlab.fast.lab.evaluate.pairs import Measure, paired_tests
from kvlab.fast.lab.evaluate.statistics import Interval, mean_interval
from kvlab.fast.lab.sweep.summary import ACCEPTED, TaskSummary, main_measure
from kvlab.fast.lab.tables import Table
from kvlab.reference.notation import Array
from study.stored import stored_summary

SCORES = {
    "random": "random",
    "streaming_llm@sinks=0": "recency",
    "value_norm": "value norm",
    "knorm": "key norm",
    "tova@per_head=true": "TOVA",
    "caote:tova": "CAOTE applied to TOVA",
    "fast_caote:tova": "FastCAOTE applied to TOVA",
    "h2o": "H2O",
    "caote:h2o": "CAOTE applied to H2O",
    "fast_caote:h2o": "FastCAOTE applied to H2O",
    "ahakv@recent=16": "AhaKV",
    "snapkv@window=16,schedule=every_block": "SnapKV",
    "rkv@every=16": "R-KV",
    "lazy_eviction": "LazyEviction, α as published",
    "lazy_eviction@threshold=0.01": "LazyEviction, maximum of heads",
    "lazy_eviction@threshold=0.01,reduce=mean": "LazyEviction, mean of heads",
}
"""Scores in the order of the rows, as a picture names them."""
PROTECTIONS = {
    "nothing": "nothing",
    "first1": "first token",
    "first4": "first 4",
    "newest16": "newest 16",
    "newest50%": "newest half",
    "first10%+newest10%": "both ends, 10 %",
    "prompt": "prompt",
}
"""Protections in the order of the columns."""
PANELS = {
    "jumps": (("map_jumps", "50%"), ("map_jumps", "30%"), ("map_jumps", "20%")),
    "smollm2": (("map_writing", "30%"), ("map_loss", "30%"), ("map_needle", "506")),
    "both": (("map_jumps", "50%"), ("map_writing", "30%")),
    "smollm2-more": (
        *(("map_writing_budgets", "20%"), ("map_writing_budgets", "50%")),
        ("map_chat", "30%"),
    ),
    "smollm2-reads": (
        *(("map_loss_budgets", "20%"), ("map_loss_budgets", "50%")),
        ("map_needle_2k", "50%"),
    ),
}
"""Sweep and budget of each panel of a picture."""
OPEN = (
    (("map_jumps", "50%"), ("map_jumps_drafts", "50%")),
    (("map_loss", "30%"), ("map_writing", "30%")),
    (("map_needle", "506"), ("map_writing", "30%")),
)
"""Sweeps and budgets, and the accepted length beside which their verdicts stand."""
MEASURED = {
    "map_jumps": "programs: solved",
    "map_loss": "SmolLM2: loss",
    "map_needle": "SmolLM2: needles",
}
"""What these sweeps measure."""
OF_PAPERS = (
    "caote:tova",
    "caote:h2o",
    "lazy_eviction@window=104,threshold=0.01,reduce=mean",
    "lazy_eviction@threshold=0.01",
    "ahakv@recent=16",
    "desirekv@interval=32,selector=8,group=32",
)
"""Methods of the four papers, with protections of their own."""
TITLES = {
    "map_jumps": "Jump programs solved, %",
    "map_writing": "SmolLM2 writes: tokens as the full cache, %",
    "map_writing_budgets": "SmolLM2 writes: tokens as the full cache, %",
    "map_chat": "SmolLM2 answers: tokens as the full cache, %",
    "map_loss": "SmolLM2 reads: nats lost",
    "map_loss_budgets": "SmolLM2 reads: nats lost",
    "map_needle_2k": "SmolLM2: needles in 2,000 tokens, %",
    "map_needle": "SmolLM2: needles found, %",
}


@dataclass(frozen=True)
class Panel:
    """One task at one budget: a cell for every score and protection."""

    sweep: str
    task: str
    budget: str
    measure: Measure
    better: int
    """1 where more is better, −1 where less is."""
    scores: tuple[str, ...]
    cells: Float[Array, "scores protections"]
    """Means; NaN where a cell cannot be run. Of a loss, what it is above the full cache's."""
    gains: Float[Array, "scores protections"]
    """1 where a score is significantly better than its matched control, −1 worse; after Holm."""
    explained: dict[str, Interval]
    """Shares of the variance of the cells, by the knob that explains them."""


@cache
def panel(sweep: str, budget: str, by: Measure | None = None) -> Panel:
    """Read one task at one budget, by what ranks methods there or by another measure."""
    found = stored_summary(sweep)
    measure, entries = by or main_measure(found.points), found.budgets[budget]
    values = _values(found, entries, measure)
    full = np.asarray(measure.values(found.point("full", None)), dtype=float)
    base = 0.0 if measure.sign > 0 else full.mean()
    shown = tuple(score for score in SCORES if any(score == each for each, _ in values))
    cells = np.full((len(shown), len(PROTECTIONS)), np.nan)
    for i, score in enumerate(shown):
        for j, protection in enumerate(PROTECTIONS):
            if (score, protection) in values:
                cells[i, j] = values[score, protection].mean() - base
    gains = np.zeros(cells.shape)
    for test in found.gains:
        score, protection = _split(test.first)
        if test.budget == entries and score in shown and protection in PROTECTIONS:
            place = shown.index(score), list(PROTECTIONS).index(protection)
            gains[place] = int(is_significant(test)) - int(test.verdict == test.second)
    return Panel(
        *(sweep, found.task, budget, measure, measure.sign, shown, cells, gains),
        explained=_explained(shown, values),
    )


def split(
    sweep: str,
    budget: str,
    by: Measure | None = None,
    without: Collection[str] = (),
    under: Collection[str] = tuple(PROTECTIONS),
) -> dict[str, Interval]:
    """Split the variance as a panel does, without some scores, or under some protections."""
    found = stored_summary(sweep)
    values = _values(found, found.budgets[budget], by or main_measure(found.points))
    values = {at: each for at, each in values.items() if at[1] in under}
    shown = [each for each in SCORES if each not in without and any(each == s for s, _ in values)]
    return _explained(shown, values)


def _values(found: TaskSummary, entries: int, measure: Measure) -> dict[tuple[str, str], Array]:
    """Return the values of every cell, by score and protection."""
    values: dict[tuple[str, str], Array] = {}
    for point in found.points:
        score, protection = _split(point.method)
        if point.budget == entries and protection in PROTECTIONS and measure.values(point):
            values[score, protection] = np.asarray(measure.values(point), dtype=float)
    return values


def _split(method: str) -> tuple[str, str]:
    """Return a method's score and protection, which is empty where the method's own holds."""
    score, _, protection = method.partition("protected=")
    return score.rstrip("@,"), protection


def _explained(shown: Sequence[str], values: Any) -> dict[str, Interval]:
    """Split the variance of the cells into score, protection, and both together.

    Cells stand for scores and protections that all ran; intervals are over the units, each of which
    stands for what leaving it out changes (the jackknife's pseudo-values).
    """
    columns = [p for p in PROTECTIONS if sum((s, p) in values for s in shown) > len(shown) / 2]
    rows = [s for s in shown if all((s, p) in values for p in columns)]
    units = np.stack([np.stack([values[s, p] for p in columns]) for s in rows])
    cells, n = units.mean(axis=2), units.shape[2]
    shares = np.array(_shares(cells))
    without = np.array([_shares((n * cells - units[..., i]) / (n - 1)) for i in range(n)])
    found = zip(shares.tolist(), (n * shares - (n - 1) * without).T, strict=True)
    own = [replace(mean_interval(each.tolist(), 0.0, 1.0), mean=share) for share, each in found]
    return dict(zip(("score", "protection", "match"), own, strict=True))


def _shares(cells: Float[Array, "scores protections"]) -> tuple[float, float, float]:
    middle = cells - cells.mean()
    total = float((middle**2).mean()) or 1.0
    by_score = float((middle.mean(axis=1) ** 2).mean()) / total
    by_protection = float((middle.mean(axis=0) ** 2).mean()) / total
    return by_score, by_protection, max(0.0, 1 - by_score - by_protection)


ON_PAGES = ("both", "jumps", "smollm2")
"""Maps that pages show, and phones in a column; they link to the others."""


def draw(model: str, narrow: bool = False) -> Picture:
    """Draw scores × protections, a panel per task and budget; ▲ ▼ mark gains and losses."""
    panels = [panel(*each) for each in PANELS[model]]
    most = max(len(each.scores) for each in panels)
    height = 1.9 + 0.27 * most
    if narrow:
        figure, axes = canvas(rows=len(panels), width=NARROW + 0.4, height=height * len(panels))
    else:
        figure, axes = canvas(len(panels), width=12.5, height=height)
    for first, (place, each) in enumerate(zip(axes, panels, strict=True)):
        _draw(place, each, names=narrow or first == 0 or each.scores != panels[0].scores)
    text = "; ".join(
        f"{each.task} at {each.budget}: protection explains "
        f"{each.explained['protection'].written('.0f', scale=100)} % of the variance, the score "
        f"{each.explained['score'].written('.0f', scale=100)} %"
        for each in panels
    )
    about = f"Scores under protections, {model}. {text}. Intervals are over problems alone."
    return finish(figure, about)


def _draw(axes: Any, each: Panel, names: bool) -> None:
    loss = each.better < 0
    ran = [i for i, column in enumerate(each.cells.T) if not np.isnan(column).all()]
    cells, gains = each.cells[:, ran], each.gains[:, ran]
    worst = np.nanquantile(cells, 0.9) if loss else 1.0
    shade = 1 - cells / worst if loss else cells
    axes.imshow(shade, cmap="YlGnBu", vmin=0, vmax=1.25, aspect="auto")
    for (i, j), cell in np.ndenumerate(cells):
        if np.isnan(cell):
            axes.text(j, i, "–", ha="center", va="center", fontsize=7, color="0.5")
            continue
        mark = {1: " ▲", -1: " ▼", 0: ""}[int(gains[i, j])]
        figure = f"{cell:.2f}" if loss else f"{math.floor(100 * cell + 0.5)}"
        ink = "white" if shade[i, j] > 0.75 else "#111111"
        axes.text(j, i, figure + mark, ha="center", va="center", fontsize=7, color=ink)
    columns = [list(PROTECTIONS.values())[i] for i in ran]
    axes.set_xticks(range(len(columns)), columns, rotation=40, ha="right")
    axes.set_yticks(range(len(each.scores)), [SCORES[s] for s in each.scores] if names else [])
    axes.tick_params(labelsize=7.5, length=0)
    axes.spines[:].set_visible(False)
    kept = f"{each.budget} {'of the ' if '%' in each.budget else ''}entries"
    knobs = ", ".join(f"{n} {100 * x.mean:.0f} %" for n, x in each.explained.items())
    axes.set_title(
        f"{TITLES[each.sweep]}\nat {kept}; darker is better\n{knobs}",
        fontsize=8,
    )


def papers(sweep: str) -> Table:
    """List what each method drafts correctly without and with its score, and its protection."""
    found = {point.method: point.accepted for point in stored_summary(sweep).points}
    rows = []
    for spec in OF_PAPERS:
        bare = f"{spec}{',' if '@' in spec else '@'}protected=nothing"
        specs = f"random:{bare}", f"random:{spec}", bare, spec
        if cells := [
            interval.written(".1f", scale=100) for each in specs if (interval := found.get(each))
        ]:
            rows.append([spec, *cells])
    return Table(("", "neither", "protection alone", "score alone", "both"), rows)


def left_open() -> Iterator[dict[str, Any]]:
    """Count the pairs of scores that a measure leaves open, and those that drafts decide."""
    for sweep, drafts in OPEN:
        decided = []
        for protection in PROTECTIONS:
            one, two = _decided(protection, *sweep), _decided(protection, *drafts, ACCEPTED)
            decided += [(one[pair], two[pair]) for pair in one.keys() & two.keys()]
        yield {
            **{"sweep": sweep[0], "drafts": drafts[0], "pairs": len(decided)},
            "open": sum(not by_first for by_first, _ in decided),
            "decided by drafts": sum(b > a for a, b in decided),
            "not decided by drafts": sum(a > b for a, b in decided),
        }


def told_apart(*sweeps: str) -> Table:
    """List how many pairs of scores measures tell apart, and accepted length beside them."""
    rows = []
    for each in left_open():
        if each["sweep"] in sweeps:
            apart = each["pairs"] - each["open"]
            both = apart - each["not decided by drafts"]
            figures = each["pairs"], apart, both, each["decided by drafts"]
            rows.append([MEASURED[each["sweep"]], *map(str, figures)])
    columns = "measure", "pairs", "told apart by it", "of these, by accepted length, too"
    return Table((*columns, "by accepted length alone"), rows)


def _decided(
    protection: str, sweep: str, budget: str, measure: Measure | None = None
) -> dict[frozenset[str], bool]:
    """Say which pairs of scores are told apart; Holm's correction is over all of them."""
    found = stored_summary(sweep)
    named = [(*_split(row.method), row) for row in found.points]
    rows = [
        replace(row, method=score)
        for score, own, row in named
        if score in SCORES and (own, row.budget) == (protection, found.budgets[budget])
    ]
    pairs = list(combinations([row.method for row in rows], 2))
    tests = paired_tests(rows, pairs, measure or main_measure(found.points))
    return {frozenset((each.first, each.second)): each.verdict in SCORES for each in tests}


def figures() -> Iterator[dict[str, Any]]:
    """Yield what each panel says as plain data."""
    for model in ("jumps", "smollm2", "smollm2-more", "smollm2-reads"):
        asked = [*PANELS[model], *([(*OPEN[0][1], ACCEPTED)] if model == "jumps" else [])]
        for each in (panel(*one) for one in asked):
            yield {
                "model": model,
                **{name: getattr(each, name) for name in ("sweep", "task", "budget", "scores")},
                "measure": each.measure.name,
                "protections": list(PROTECTIONS),
                "cells": [[None if np.isnan(x) else x for x in row] for row in each.cells],
                "gains": each.gains.tolist(),
                "explained": {name: vars(share) for name, share in each.explained.items()},
            }


def main(directory: Annotated[Path, typer.Argument(help="Where the pages are.")]) -> None:
    """Write the pictures and the figures."""
    for model in PANELS:
        for narrow, folder in ((False, ""), (True, "narrow"))[: 1 + (model in ON_PAGES)]:
            draw(model, narrow).save(directory / "images" / folder / f"map-{model}.svg")
    text = json.dumps([*figures(), *left_open()], indent=1)
    (directory / "images" / "map.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
