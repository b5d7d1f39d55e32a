"""Charts of what methods gain over their controls, on the page of results.

python -m study.gains docs
"""

from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab.drawing import GREY, NARROW, Picture, canvas, finish, name_rows
from kvlab.fast.lab.evaluate.controls import is_significant
from study.stored import sorted_gains

CHARTS = {
    "study": ("gains-jumps.svg", 100, "points gained over the control"),
    "loss_smollm2": ("gains-smollm2.svg", -1, "nats per token gained over the control"),
}
"""Sweep, file, scale and unit: loss is better where it is lower."""


def draw(sweep: str, narrow: bool) -> Picture:
    """Draw the gain of every method that gains at some budget, a panel per budget."""
    _, scale, unit = CHARTS[sweep]
    gains = sorted_gains(sweep)
    better = {each.first for each in gains if is_significant(each)}
    shown = [each for each in gains if each.first in better and each.budget is not None]
    budgets = list(dict.fromkeys(each.budget for each in shown))
    names = list(dict.fromkeys(each.first for each in shown))
    if narrow:
        height = 0.4 + len(budgets) * (0.4 + 0.27 * len(names))
        figure, axes = canvas(rows=len(budgets), width=NARROW, height=height, sharex=True)
    else:
        figure, axes = canvas(len(budgets), width=10, height=0.9 + 0.24 * len(names), sharey=True)
    for place, budget in zip(axes, budgets, strict=True):
        place.axvline(0, color=GREY, linewidth=0.8)
        for each in shown:
            if each.budget != budget:
                continue
            row, found = len(names) - 1 - names.index(each.first), each.difference
            ends = sorted((scale * found.low, scale * found.high))
            colour = "tab:blue" if is_significant(each) else GREY
            place.plot(ends, [row, row], "-", color=colour, linewidth=1.5)
            marker = "o" if is_significant(each) else "|"
            place.plot(scale * found.mean, row, marker, color=colour, markersize=5)
        place.set_title(f"{budget} entries")
        if narrow:
            name_rows(place, names)
        else:
            place.set_yticks(range(len(names) - 1, -1, -1), names)
    figure.supxlabel(f"{unit}, 95 % intervals", fontsize=8.5)
    return finish(figure, f"{unit.capitalize()}, with 95 % intervals. Blue: significant.", "none")


def main(directory: Annotated[Path, typer.Argument(help="Where the pages are.")]) -> None:
    """Write the charts."""
    for sweep, (name, *_) in CHARTS.items():
        for narrow, folder in ((False, ""), (True, "narrow")):
            draw(sweep, narrow).save(directory / "images" / folder / name)


if __name__ == "__main__":
    typer.run(main)
