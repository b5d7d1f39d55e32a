"""What another reading of a paper changes on jump programs.

Every option that a paper's divergences name runs on the same problems as the default reading: the
sweep ``results/readings``.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kvlab.fast.lab.evaluate.statistics import Interval, paired_difference
from kvlab.fast.lab.sweep.summary import Point, TaskSummary
from kvlab.reference import methods
from kvlab.reference.methods import takes_budget
from kvlab.reference.proofs import PAPERS
from study.contrasts import OTHER_READINGS, stored_summary

CONDITIONS = {
    "lazy_eviction": "threshold=0.01",
    "caote:snapkv": "window=16",
    "desirekv": "interval=32,selector=8,group=32",
    "ahakv": "recent=16",
}
"""Periods and windows that fit texts of 400 to 700 tokens, the same for both readings."""

MANY_AT_ONCE = {"several": "every=16"}
"""Options that only matter when several entries leave at once."""

BARE = {"caote:tova": "caote:h2o"}
"""Compositions that are another reading of a composition."""


@dataclass(frozen=True)
class Pair:
    """Two readings of one point."""

    option: str
    """As the divergence lists it."""
    default_run: str
    option_run: str


@dataclass(frozen=True)
class Difference:
    """What another reading changes: its figure minus the default's."""

    option: str
    """The other reading, in registry syntax, as its divergence lists it."""
    default_run: str
    """What was run: the default reading."""
    option_run: str
    """What was run: the other reading."""
    budget: int | None
    solved_default: float
    solved: Interval
    """Share of problems solved."""
    output_error: Interval
    kl: Interval


@dataclass(frozen=True)
class Differences:
    """A measurement of all readings."""

    problems: int
    conditions: str
    """Model, seed and budget, in words."""
    rows: tuple[Difference, ...]

    def of(self, option: str) -> list[Difference]:
        """Return what was measured of an option."""
        return [row for row in self.rows if row.option == option]


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
    return Pair(option, specification(composition, shared), specification(option, shared))


def specification(start: str, options: Sequence[str]) -> str:
    """Append options in registry syntax."""
    if not options:
        return start
    return f"{start}{',' if '@' in start else '@'}{','.join(options)}"


def differences(summary: TaskSummary, compared: Sequence[Pair]) -> Iterator[Difference]:
    """Compare both readings of every pair, problem by problem, at every budget.

    Raises:
        ValueError: if a reading did not run on every problem.
    """
    for each in compared:
        budgets = sorted(set(summary.budgets.values()))
        for budget in budgets if takes_budget(each.option_run) else [None]:
            default = summary.point(each.default_run, budget)
            other = summary.point(each.option_run, budget)
            if refusal := default.refusal or other.refusal:
                raise ValueError(f"{each.option_run} did not run on every problem: {refusal}")
            solved, error, kl = (
                Interval(*paired_difference(read(default), read(other))) for read in FIGURES
            )
            share = float(np.mean(default.outcomes))
            yield Difference(
                each.option, each.default_run, each.option_run, budget, share, solved, error, kl
            )


FIGURES: tuple[Callable[[Point], Sequence[float]], ...] = (
    lambda point: [float(solved) for solved in point.outcomes],
    lambda point: point.figures["output_error"],
    lambda point: point.figures["kl"],
)
"""Problem by problem: solved or not, output error, divergence from the full cache."""


def stored_differences() -> Differences:
    """Return what the sweep in the package says of every reading."""
    summary = stored_summary(OTHER_READINGS)
    (measured,) = {len(point.figures["kl"]) for point in summary.points}
    stated = ", ".join(f"{text} = {entries}" for text, entries in summary.budgets.items())
    seeds = ", ".join(map(str, summary.seeds))
    conditions = (
        f"model {summary.model}, seed {seeds}, budgets {stated} entries per KV head and layer; "
        f"error and KL over the first {measured}"
    )
    problems = len(summary.points[0].outcomes)
    return Differences(problems, conditions, tuple(differences(summary, list(pairs()))))
