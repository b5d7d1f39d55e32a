"""One problem of a comparison on which methods differ, recorded for the viewer."""

from functools import partial

import numpy as np

from kvlab.fast.lab import viewing
from kvlab.fast.lab.evaluate.compare import Comparison
from kvlab.fast.lab.evaluate.findings import budget_of_largest_spread, points_at
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.sweep.summary import CONTROL, Point
from kvlab.fast.lab.terminal import Report
from kvlab.reference.methods import base_name
from kvlab.reference.models import EMBEDDED, embedded_directory
from kvlab.reference.simulator.timeline import Timeline

MOST = 3
"""Methods that are recorded."""


def record_example(comparison: Comparison, report: Report | None = None) -> Timeline | None:
    """Record the methods that are `shown` on the problem that splits them most evenly.

    Return None if the model is not embedded, because the reference may not be able to read it, and
    if no two methods differ on a problem.
    """
    sweep, budget = comparison.sweep, budget_of_largest_spread(comparison)
    (model,), (spec,) = sweep.models, sweep.tasks
    if model not in EMBEDDED or budget is None:
        return None
    points = shown(points_at(comparison, budget))
    shares = np.mean([point.outcomes for point in points], axis=0)
    number = int(np.argmin(np.abs(shares - 0.5)))
    if shares[number] in (0.0, 1.0):
        return None
    points.sort(key=lambda point: point.outcomes[number], reverse=True)
    points.insert(1, points.pop())  # the viewer opens with the first two: one of each kind
    task = find_task(spec)
    problem = task.problems(sweep.problems, sweep.seeds[0])[number]
    source = viewing.text_source(
        problem.prompt,
        embedded_directory(model),
        len(problem.solution.split(" ")) * 5 // 4,
        lambda text: task.grade(problem, text).solved,
    )
    record = partial(viewing.record_methods, source, [point.method for point in points], budget)
    return (record() if report is None else record(report=report)).timeline


def shown(points: list[Point]) -> list[Point]:
    """Choose the first points, which are the best, and eviction at random if it was tried."""
    controls = [point for point in points if base_name(point.method) == CONTROL][:1]
    others = [point for point in points if point not in controls]
    return [*others[: MOST - len(controls)], *controls]
