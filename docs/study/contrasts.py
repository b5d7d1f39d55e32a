"""The papers' contrasts, measured on the embedded models, and a verdict on each contrast.

``contrasts.toml`` lists the contrasts, and names the results that decide each of them: a sweep in
``results/`` (``kvlab sweep SWEEP.toml --out DIRECTORY`` repeats it), or a file that
``kvlab perplexity --json``, ``kvlab needle --json`` or `study.output_errors` wrote.
"""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from kvlab.fast.lab.evaluate.statistics import (
    Interval,
    mean_interval,
    paired_difference,
    paired_shares,
)
from kvlab.fast.lab.sweep.summary import Point, TaskSummary, summarise
from kvlab.reference.checks import check_choice
from kvlab.reference.methods import takes_budget
from kvlab.reference.proofs import PAPERS
from kvlab.reference.selection import budget_entries

HERE = Path(__file__).parent
RESULTS = HERE / "results"

FIGURES = {
    "smaller error": "output_error",
    "smaller loss": "losses",
    "fewer missed": "missed",
}
"""Kinds of contrast about a figure of every problem, and the figure."""
KINDS = ("more solved", "as many solved", *FIGURES)

REAL = "smollm2"
"""The model that reads English."""
BUDGETS = {"reasoning": ("70%", "85%"), "jumps": ("30%", "50%"), REAL: ("25%", "50%")}
"""Budgets at which contrasts are judged, by task: at these budgets the methods differ."""
FAMILY = 0.95
"""Probability that all intervals together contain the true values, by Bonferroni."""
RESAMPLES = 40_000
"""Resamples of every bootstrap: intervals at so high a level need the tails."""
CLOSE = 0.10
"""Shares of solved problems that differ by less count as about as good."""


@dataclass(frozen=True)
class Contrast:
    """One claim of a paper: ``ours`` against ``other``.

    Raises:
        ValueError: if the paper, the kind or a method is not known, or both methods are the same.
    """

    paper: str
    """The method's name in the registry."""
    source: str
    statement: str
    printed: str
    """Figures of the paper: those of ours, then those of the other."""
    ours: str
    """Registry syntax, like ``other``."""
    other: str
    kind: str
    """One of `KINDS`."""
    results: str
    """Name of the results that decide; see `stored_summary`."""
    task: str = "reasoning"
    """The task whose problems count: a key of `BUDGETS`."""
    budgets: Sequence[str | None] = ()
    """Budgets at which to judge; by default `BUDGETS`, or None if neither method takes a budget."""

    def __post_init__(self) -> None:
        check_choice(PAPERS, paper=self.paper)
        check_choice(KINDS, kind=self.kind)
        check_choice(tuple(BUDGETS), task=self.task)
        if self.ours == self.other:
            raise ValueError(f"ours = {self.ours!r} must differ from other")
        if not self.budgets:
            some = takes_budget(self.ours) or takes_budget(self.other)
            object.__setattr__(self, "budgets", BUDGETS[self.task] if some else (None,))


@dataclass(frozen=True)
class Untested:
    """What cannot be tested on the embedded models, and why."""

    paper: str
    source: str
    statement: str
    why: str
    instead: str
    """A way to test it, for readers who have the means."""

    def __post_init__(self) -> None:
        check_choice(PAPERS, paper=self.paper)


class Verdict(StrEnum):
    """What a measurement says about a contrast."""

    HOLDS = "holds"
    FAILS = "does not hold here"
    BOTH = "holds at one budget, not at the other"
    UNDECIDED = "undecided here"
    FLOOR = "cannot be tested here: nothing is solved"


@dataclass(frozen=True)
class Judged:
    """A contrast at one budget."""

    contrast: Contrast
    budget: str | None
    problems: int
    """Problems on which both methods were compared."""
    ours: Interval
    other: Interval
    """Shares solved, or mean errors, with 95 % intervals."""
    difference: Interval
    """Ours minus the other's, over the same problems; all intervals hold together at `FAMILY`."""
    verdict: Verdict


# --- reading -------------------------------------------------------------------------------------


@cache
def contrasts() -> tuple[Contrast, ...]:
    """Return all contrasts, paper by paper."""
    return tuple(read_tables(Contrast, "contrasts"))


@cache
def untested() -> tuple[Untested, ...]:
    """Return what cannot be tested, paper by paper."""
    return tuple(read_tables(Untested, "untested"))


def read_tables(kind: type[Any], name: str, path: Path = HERE / "contrasts.toml") -> Iterator[Any]:
    """Yield the tables of a name in a TOML file.

    Raises:
        ValueError: if a key is missing or unknown, or a value is not allowed.
    """
    keys = {field.name for field in fields(kind)}
    required = {field.name for field in fields(kind) if field.default is MISSING}
    written = tomllib.loads(path.read_text(encoding="utf-8"))[name]
    for number, each in enumerate(written, start=1):
        if wrong := required - each.keys() | each.keys() - keys:
            raise ValueError(
                f"{name} number {number}: missing or unknown: {', '.join(sorted(wrong))}"
            )
        yield kind(**each)


@cache
def stored_summary(name: str) -> TaskSummary:
    """Return the summary of a sweep, a directory of ``results/``, or of a command's JSON there."""
    if (RESULTS / f"{name}.json").exists():
        return _summary_of_rows(name)
    from kvlab.fast.lab.sweep.run import read_stored  # needs pyarrow

    (summary,) = summarise(read_stored(RESULTS / name))
    return summary


def _summary_of_rows(name: str) -> TaskSummary:
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    if "reading" in found:
        length = found.get("mean_length") or fmean(found["lengths"])
        texts = found["reading"]["budgets"]
        budgets = {text: budget_entries(text, round(length)) for text in texts}
    else:
        length = fmean(map(sum, found["texts"]))
        entries = {row["budget"] for row in found["rows"]} - {None}
        budgets = {f"{each / length:.0%}": each for each in entries}
    points = tuple(_point(row, budgets) for row in found["rows"])
    model = found.get("model", REAL if name.endswith(REAL) else "reasoner")
    return TaskSummary(model, name, budgets, length, (0,), points, (), {})


def _point(row: Mapping[str, Any], budgets: Mapping[str, int]) -> Point:
    """Return a row as a point; every figure has one value per text."""
    found = row.get("figures") or {name: row[name] for name in FIGURES.values() if name in row}
    figures = {name: tuple(map(float, values)) for name, values in found.items()}
    count, refusal = len(next(iter(figures.values()))), row.get("refusal")
    budget = budgets.get(row["budget"], row["budget"])
    return Point(
        method=row["method"],
        budget=budget,
        problems=count,
        wanted=count,
        refusal=refusal,
        figures=figures,
    )


# --- verdicts ------------------------------------------------------------------------------------


def judge(
    paper: str | None = None, read: Callable[[str], TaskSummary] = stored_summary
) -> list[tuple[Judged, ...]]:
    """Judge every contrast of a paper, or of all, at every budget that it has.

    Args:
        paper: one of `kvlab.reference.proofs.PAPERS`; None judges all.
        read: returns the results of a name.

    Raises:
        KeyError: if the results lack one of a contrast's methods.
    """
    level = 1 - (1 - FAMILY) / sum(len(each.budgets) for each in contrasts())
    return [
        tuple(judge_one(read(each.results), each, budget, level) for budget in each.budgets)
        for each in contrasts()
        if paper in (None, each.paper)
    ]


def judge_one(found: TaskSummary, contrast: Contrast, budget: str | None, level: float) -> Judged:
    """Judge a contrast at one budget, on the problems that both methods were given.

    Raises:
        KeyError: if the results lack one of the methods.
    """
    ours, other = (found.point_at(spec, budget) for spec in (contrast.ours, contrast.other))
    if figure := FIGURES.get(contrast.kind):
        errors = ours.figures[figure], other.figures[figure]
        difference = Interval(*paired_difference(errors[1], errors[0], level, RESAMPLES))
        decided = direction(-difference.high, -difference.low)
        means, others = (Interval(*mean_interval(each)) for each in errors)
        return Judged(contrast, budget, len(errors[0]), means, others, difference, decided)
    pairs = list(zip(other.outcomes, ours.outcomes, strict=True))
    only_other, only_ours = (pairs.count(each) for each in ((True, False), (False, True)))
    difference = Interval(*paired_shares(only_other, only_ours, len(pairs), level, RESAMPLES))
    if not any((*ours.outcomes, *other.outcomes)):
        decided = Verdict.FLOOR
    elif contrast.kind == "as many solved":
        decided = closeness(difference)
    else:
        decided = direction(difference.low, difference.high)
    assert ours.interval is not None and other.interval is not None
    return Judged(contrast, budget, len(pairs), ours.interval, other.interval, difference, decided)


def direction(low: float, high: float) -> Verdict:
    """Judge an interval of how much better ours is."""
    if low > 0:
        return Verdict.HOLDS
    return Verdict.FAILS if high < 0 else Verdict.UNDECIDED


def closeness(difference: Interval) -> Verdict:
    """Judge an interval of a difference that should be small."""
    if difference.low > -CLOSE and difference.high < CLOSE:
        return Verdict.HOLDS
    far = difference.low > CLOSE or difference.high < -CLOSE
    return Verdict.FAILS if far else Verdict.UNDECIDED


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """Put the verdicts at several budgets together."""
    told = {each for each in verdicts if each in (Verdict.HOLDS, Verdict.FAILS)}
    if len(told) == 2:
        return Verdict.BOTH
    if told:
        return told.pop()
    return Verdict.UNDECIDED if Verdict.UNDECIDED in verdicts else Verdict.FLOOR


def counts(judgements: Sequence[Sequence[Judged]]) -> Mapping[Verdict, int]:
    """Count the verdicts of contrasts, all budgets put together."""
    told = [overall([each.verdict for each in judged]) for judged in judgements]
    return {verdict: told.count(verdict) for verdict in Verdict}
