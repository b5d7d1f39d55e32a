"""What sweeps and other commands found: read from ``results/``, and as a table."""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from kvlab.fast.lab.drawing import GREY, INK, Picture, canvas, finish
from kvlab.fast.lab.sweep.summary import Point, TaskSummary, Test, main_measure, summarise
from kvlab.fast.lab.tables import MISSING, Table, layout, tabulate

RESULTS = Path(__file__).parent / "results"

REAL = "smollm2"
"""The model that reads English."""
SHORT = 28
"""Characters of a name that stands on one line of a picture."""


@cache
def stored_summary(name: str, task: str = "") -> TaskSummary:
    """Return the summary of a sweep (``kvlab sweep SWEEP.toml --out DIRECTORY`` repeats it).

    Where it has several tasks, one is to be named.
    """
    from kvlab.fast.lab.sweep.run import read_stored  # needs pyarrow

    found = summarise(read_stored(RESULTS / name))
    (summary,) = (each for each in found if task in ("", each.task))
    return summary


@cache
def sorted_gains(name: str) -> list[Test]:
    """Return what methods of a sweep gain over their controls: first who gains most in all."""
    found = stored_summary(name)
    sign, total = main_measure(found.points).sign, defaultdict(float)
    for each in found.gains:
        total[each.first] += sign * each.difference.mean
    return sorted(found.gains, key=lambda each: -total[each.first])


@cache
def stored_file(name: str) -> dict[str, Any]:
    """Return a file as it was written."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def results(
    found: TaskSummary, specs: Collection[str] = (), budgets: Collection[str] = ()
) -> Table:
    """List what a sweep or `kvlab.fast.lab.compare` found, without refusals and empty columns.

    Args:
        found: one task.
        specs: methods, and controls that the sweep added; default all methods.
        budgets: as the sweep states them; default all.
    """
    points = _points(found, specs, budgets)
    method, budget, *others = (x for x in layout("compare").columns if x.name not in ("KiB", "ms"))
    figures = [each for each in others if any(each.cell(point) != MISSING for point in points)]
    return tabulate(points, (method, replace(budget, missing="own rule"), *figures))


def solved(found: TaskSummary, specs: Sequence[str], budgets: Collection[str] = ()) -> Picture:
    """Draw the share of problems that methods solved, with 95 % intervals, a panel per budget.

    Args:
        found: one task.
        specs: methods, and controls that the sweep added, from top to bottom; controls are grey.
        budgets: as the sweep states them; default all.
    """
    points = _points(found, specs, budgets)
    shares = [(each, each.interval) for each in points if each.interval is not None]
    texts = {entries: f"{text}: {entries} entries" for text, entries in found.budgets.items()}
    sizes = list(dict.fromkeys(point.budget for point, _ in shares))
    height = 0.9 + 0.24 * len(specs)
    figure, panels = canvas(len(sizes), height=height, sharey=True, sharex=True)
    for axes, size in zip(panels, sizes, strict=True):
        for point, share in shares:
            if point.budget == size:
                place = len(specs) - 1 - list(specs).index(point.method)
                mean, low, high = (100 * x for x in (share.mean, share.low, share.high))
                colour = GREY if point.method.startswith("random") else "C0"
                axes.barh(place, mean, color=colour, alpha=0.75)
                axes.errorbar(mean, place, xerr=[[mean - low], [high - mean]], color=INK, capsize=2)
        axes.set(xlabel="solved, %", xlim=(0, 100), ylim=(-0.6, len(specs) - 0.4))
        axes.set_yticks(range(len(specs)), [_short(spec) for spec in reversed(specs)])
        for label in axes.get_yticklabels():
            label.set_color(GREY if label.get_text().startswith("random") else INK)
        axes.set_title("" if size is None else texts[size])
    told = (
        f"{p.method} at {p.budget or 'its own rule'}: {x.written('.0f', scale=100)}"
        for p, x in shares
    )
    return finish(figure, f"Problems solved, %, with 95 % intervals: {'; '.join(told)}.")


IN_WORDS = {
    **{"recent=0": "nothing protected", "pin_prompt=false": "may evict the prompt"},
    **{"schedule=every_block": "at every block", "per_head=true": "head by head"},
    **{"precision=nvfp4": "in NVFP4", "layers=apart": "layer by layer"},
    **{"recent=": "newest {} protected", "every=": "every {} tokens"},
    **{"threshold=": "α = {}", "window=": "window of {}", "interval=": "every {} tokens"},
    **{"selector=": "{} queries", "group=": "groups of {}", "residual=": "newest {} at 16 bits"},
    **{"key_bits=": "keys of {} bits", "value_bits=": "values of {} bits"},
}
"""What options mean, or their beginnings, before a value."""


def in_words(option: str) -> str:
    """Return what an option means, if that has words here."""
    name, _, value = option.partition("=")
    return IN_WORDS.get(option) or IN_WORDS.get(f"{name}=", option).format(value)


@cache
def plain_name(spec: str) -> str:
    """Return a method as its page calls it: "CAOTE applied to H2O (newest 25 protected)"."""
    method, _, options = spec.partition("@")
    wrappers = {"caote": "CAOTE", "fast_caote": "FastCAOTE"}
    pages = RESULTS.parents[1] / "methods"
    names = [
        wrappers.get(name)
        or re.findall("^# (.+)", (pages / f"{name}.md").read_text("utf-8"), re.MULTILINE)[0]
        for name in method.split(":")
    ]
    return " applied to ".join(names) + (
        options and f" ({', '.join(map(in_words, options.split(',')))})"
    )


def _short(spec: str) -> str:
    """Break a long name behind the method."""
    return spec if len(spec) <= SHORT else spec.replace("@", "\n@", 1)


def _points(found: TaskSummary, specs: Collection[str], budgets: Collection[str]) -> list[Point]:
    """Return the points of methods and budgets in the order of the sweep, refusals left out."""
    entries = {found.budgets[text] for text in budgets or found.budgets} | {None}
    return [
        point
        for point in ((*found.points, *found.controls) if specs else found.points)
        if point.refusal is None and point.method in (specs or {point.method})
        if point.budget in entries
    ]
