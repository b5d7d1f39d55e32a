"""Charts of what methods gain over their controls, on the page of results.

python -m study.gains docs
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kvlab.fast.lab.drawing import GREY, Picture, canvas, finish, name_rows
from kvlab.fast.lab.evaluate.controls import is_significant
from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.sweep.summary import Test
from study.stored import plain_name, sorted_gains, stored_summary

PHONE = 3.75
"""Inches of a phone's page: nothing is drawn smaller there."""
LOSS = "nats per token gained over the control"
SOLVED = "points gained over the control"
CHARTS = {
    "gains-jumps.svg": (("study",), 100, SOLVED),
    "gains-newer-jumps.svg": (("baselines",), 100, SOLVED),
    "gains-smollm2.svg": (("loss_smollm2",), -1, LOSS),
    "gains-newer-smollm2.svg": (("newer_loss",), -1, LOSS),
    "gains-needles.svg": (("needle_smollm2", "needle_2k_smollm2"), 100, SOLVED),
}
"""Sweeps, scale and unit of each file: loss is better where it is lower."""


def panels(sweeps: Sequence[str]) -> dict[str, dict[str, Test]]:
    """Return gains by the panel's title and the method: of methods that gain, or all if none does.

    The methods that gain most in all come first.
    """
    gains = [(name, each) for name in sweeps for each in sorted_gains(name)]
    better = {each.first for _, each in gains if is_significant(each)}
    found: dict[str, dict[str, Test]] = {}
    for name, each in gains:
        if each.budget is not None and each.first in (better or {each.first}):
            summary = stored_summary(name)
            if len(sweeps) > 1:
                tokens = summary.points[0].results[0].prompt_tokens
                title = f"{each.budget} of about {round(tokens or 0, -3):,} entries"
            else:
                texts = {entries: text for text, entries in summary.budgets.items()}
                text = texts[int(each.budget)]
                title = f"{text}, " * text.endswith("%") + f"{each.budget} entries"
            found.setdefault(title, {})[each.first] = each
    return found


def draw(file: str, narrow: bool) -> Picture:
    """Draw gains over controls, a panel per budget or length; a phone gets one of many."""
    sweeps, scale, unit = CHARTS[file]
    shown = panels(sweeps)
    names = list(dict.fromkeys(name for gains in shown.values() for name in gains))
    if narrow and len(shown) > 2:  # one panel fits a phone's screen
        title = list(shown)[len(shown) // 2]
        shown = {f"{title} (other budgets: Every gain, below)": shown[title]}
        names.sort(key=lambda name: -scale * next(iter(shown.values()))[name].difference.mean)
    labels = [*map(plain_name, names)]
    if narrow:
        height = 0.4 + len(shown) * (0.4 + 0.38 * len(names))
        figure, axes = canvas(rows=len(shown), width=PHONE, height=height, sharex=True)
    else:
        width = 10 if len(shown) > 1 else 6
        height = 0.9 + 0.24 * len(names)
        figure, axes = canvas(len(shown), width=width, height=height, sharex=True, sharey=True)
    for place, (title, gains) in zip(axes, shown.items(), strict=True):
        rows = np.arange(len(names))
        if narrow:  # names stand between the rows
            place.vlines(0 * rows, rows - 0.25, rows + 0.15, color=GREY, linewidth=0.8, alpha=0.4)
        else:
            place.axvline(0, color=GREY, linewidth=0.8, alpha=0.4)
        for name, each in gains.items():
            row = len(names) - 1 - names.index(name)
            draw_gain(place, row, each.difference, scale, is_significant(each))
        place.set_title(title)
        place.tick_params(labelbottom=True)
        if narrow:
            name_rows(place, labels)
        else:
            place.set_yticks(range(len(names) - 1, -1, -1), labels)
    figure.supxlabel(f"{unit}, 95 % intervals", fontsize=8.5)
    return finish(figure, f"{unit.capitalize()}, with 95 % intervals. Blue: significant.", "none")


def draw_gain(
    axes: Any, row: float, found: Interval, scale: float, significant: bool, dot: str = "o"
) -> None:
    """Draw a gain with its interval in a row: blue and with a dot if it is significant."""
    colour, marker = ("tab:blue", dot) if significant else (GREY, "|")
    ends = sorted((scale * found.low, scale * found.high))
    axes.plot(ends, [row, row], "-", color=colour, linewidth=1.5)
    axes.plot(scale * found.mean, row, marker, color=colour, markersize=5)


def main(directory: Annotated[Path, typer.Argument(help="Where the pages are.")]) -> None:
    """Write the charts."""
    for file in CHARTS:
        for narrow, folder in ((False, ""), (True, "narrow")):
            draw(file, narrow).save(directory / "images" / folder / file)


if __name__ == "__main__":
    typer.run(main)
