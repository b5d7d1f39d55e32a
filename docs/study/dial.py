"""The dial: what a score gains over its control when every fact is stated several times.

In ``docs``, ``python -m study.dial .`` draws it and prints every figure.
"""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from kvlab.fast.lab.drawing import NARROW, Picture, canvas, finish
from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.sweep.run import read_stored
from kvlab.fast.lab.sweep.summary import ACCEPTED, summarise
from kvlab.reference.tasks.jumps import FACTS
from study.stored import RESULTS

WRONG, FEWER = "wrong facts per step", "fewer than the control's"


def draw(narrow: bool) -> Picture:
    """Draw both measures against the copies of a fact, a panel per budget; print what is drawn."""
    lines: dict[tuple[str, str, str], dict[int, Interval]] = defaultdict(dict)
    for found in summarise(read_stored(RESULTS / "dial")):
        copies = vars(find_task(found.task))["copies"]
        texts = {entries: text for text, entries in found.budgets.items()}
        for point in found.points:
            assert point.accepted and point.budget
            mean, low, high = (len(FACTS) * (1 - x) for x in vars(point.accepted).values())
            wrong = Interval(mean, high, low)
            lines[WRONG, texts[point.budget], point.method][copies] = wrong
        for test in found.tests:
            if test.measure == ACCEPTED.name:
                mean, low, high = (-len(FACTS) * x for x in vars(test.difference).values())
                fewer = Interval(mean, high, low)
                lines[FEWER, texts[int(test.budget or 0)], test.second][copies] = fewer
    rows, budgets, methods = (list(dict.fromkeys(each)) for each in zip(*lines, strict=True))
    if narrow:
        figure, panels = canvas(rows=len(budgets) * len(rows), width=NARROW, height=11, sharex=True)
    else:
        grid = len(budgets), len(rows)
        figure, panels = canvas(*grid, width=8.5, height=7, sharex=True, sharey="row")
    for (row, budget, method), values in lines.items():
        axes = panels[rows.index(row) * len(budgets) + budgets.index(budget)]
        x = sorted(values)
        y = np.array([[*vars(values[n]).values()] for n in x]).T
        label = method.replace("protected=", "") if narrow else method
        axes.errorbar(x, y[0], abs(y[1:] - y[0]), label=label, color=f"C{methods.index(method)}")
        axes.set(xlabel="times that a fact is stated", xticks=x, ylabel=row, title=budget)
        print(row, budget, method, *(values[n].written(".2f", " to ") for n in x), sep=" | ")
    return finish(figure, "Wrong facts per step against copies of each fact.", "below")


if __name__ == "__main__":
    for narrow, folder in ((False, ""), (True, "narrow")):
        draw(narrow).save(Path(sys.argv[1]) / "images" / folder / "dial.svg")
