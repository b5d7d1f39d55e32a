"""What another interpretation of a paper changes on jump programs.

Every option that a paper's divergences name runs on the same problems as the default: the sweep
``results/readings``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from kvlab.fast.lab.evaluate.statistics import Interval, paired_difference
from kvlab.fast.lab.sweep.summary import Point, TaskSummary
from kvlab.reference import methods
from kvlab.reference.methods import takes_budget
from kvlab.reference.proofs import PAPERS

CONDITIONS = {
    "lazy_eviction": "threshold=0.01",
    "caote:snapkv": "window=16",
    "desirekv": "interval=32,selector=8,group=32",
    "ahakv": "recent=16",
}
"""Periods and windows that fit texts of 400 to 700 tokens, the same for both interpretations."""

MANY_AT_ONCE = {"several": "every=16"}
"""Options that only matter when several entries are evicted at once."""

BARE = {"caote:tova": "caote:h2o"}
"""Compositions that are another interpretation of a composition."""


@dataclass(frozen=True)
class Pair:
    """Two interpretations of one point, in registry syntax."""

    option: str
    """The other interpretation, as its divergence lists it."""
    default_run: str
    """What was run: the default interpretation."""
    option_run: str
    """What was run: the other interpretation."""


@dataclass(frozen=True)
class Difference(Pair):
    """What another interpretation changes: its figure minus the default's."""

    budget: int | None
    solved_default: float
    solved: Interval
    """Share of problems solved."""
    output_error: Interval
    kl: Interval


def pairs() -> Iterator[Pair]:
    """Yield what to compare, for every paper."""
    for name in PAPERS:
        for divergence in methods.divergences(name):
            yield from map(pair, divergence.specifications)


def pair(option: str) -> Pair:
    """Return the two runs that show what an option changes."""
    composition, _, written = option.partition("@")
    if not written:
        return Pair(option, BARE[composition], composition)
    extra = [MANY_AT_ONCE[key] for key in MANY_AT_ONCE if f"{key}=" in written]
    shared = [each for each in (CONDITIONS.get(composition), *extra) if each]
    default = f"{composition}@{','.join(shared)}" if shared else composition
    return Pair(option, default, ",".join([option, *shared]))


def differences(summary: TaskSummary, compared: Iterable[Pair]) -> Iterator[Difference]:
    """Compare both interpretations of every pair, problem by problem, at every budget.

    Raises:
        ValueError: if an interpretation did not run on every problem.
    """
    for each in compared:
        budgets = sorted(set(summary.budgets.values()))
        for budget in budgets if takes_budget(each.option_run) else [None]:
            default = summary.point(each.default_run, budget)
            other = summary.point(each.option_run, budget)
            if refusal := default.refusal or other.refusal:
                raise ValueError(f"{each.option_run} did not run on every problem: {refusal}")
            found = (
                paired_difference(_values(default, name), _values(other, name), most)
                for name, most in (("solved", 1.0), ("output_error", inf), ("kl", inf))
            )
            share = float(np.mean(default.outcomes))
            yield Difference(each.option, each.default_run, each.option_run, budget, share, *found)


def _values(point: Point, name: str) -> list[float]:
    return [*map(float, point.outcomes if name == "solved" else point.figures[name])]
