"""The dial: what a score gains over its control when every fact is stated several times.

In ``docs``, ``python -m study.dial .`` draws it.
"""

import sys
from pathlib import Path

import numpy as np

from kvlab.fast.lab.drawing import GREY, Picture, canvas, finish
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.sweep.run import read_stored
from kvlab.fast.lab.sweep.summary import summarise
from study.stored import RESULTS


def draw() -> Picture:
    """Draw the gain of every score, and of the oracle, over the control; a panel per budget."""
    stored = summarise(read_stored(RESULTS / "dial"))
    found = {vars(find_task(each.task))["copies"]: each for each in stored}
    copies, budgets = sorted(found), stored[0].budgets
    figure, panels = canvas(len(budgets), width=8.5, height=3.8, sharey=True)
    for axes, budget in zip(panels, budgets, strict=True):
        lines = [
            [t for t in found[n].tests if t.budget == found[n].budgets[budget]] for n in copies
        ]
        for line in zip(*lines, strict=True):
            gain = 100 * np.array([[*vars(test.difference).values()] for test in line]).T
            axes.errorbar(copies, gain[0], abs(gain[1:] - gain[0]), label=line[0].second)
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.set(xlabel="times that a fact is stated", xticks=copies, title=f"budget {budget}")
    panels[0].set_ylabel("programs solved above the control's, points")
    return finish(figure, "Gain over random eviction against copies of each fact.", "below")


if __name__ == "__main__":
    draw().save(Path(sys.argv[1]) / "images" / "dial.svg")
