"""The papers' contrasts, measured on the embedded models, and a verdict on each contrast.

``contrasts.toml`` lists the contrasts. The sweeps in ``results/`` decide: the study, on jump
programs, at its budgets; the first study, on chained arithmetic; and for methods that are in
neither study the ablations, on fewer problems (``kvlab sweep SWEEP.toml --out DIRECTORY`` repeats
each). Likelihoods and needles come from ``kvlab perplexity --json`` and ``kvlab needle --json``.
Contrasts of the task ``smollm2`` are judged on SmolLM2, a real language model, and on nothing else.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
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

STUDY, ARITHMETIC, ABLATIONS, JUMP_ABLATIONS = SWEEPS = (
    "study",
    "arithmetic",
    "ablations",
    "jump_ablations",
)
"""The sweeps that decide contrasts: the first and the last on jump programs, the others on chained
arithmetic."""
LONGER, OTHER_READINGS, GRANULARITY, EQUAL_BYTES = OTHER_SWEEPS = (
    "longer",
    "readings",
    "granularity",
    "equal_bytes",
)
"""Sweeps of jump programs longer than those that the model was trained on, of other readings of
papers, of entries that leave together, and of precisions."""
NEEDLES, LONGER_NEEDLES, FACTS, FACTS_AFTER = REAL_SWEEPS = (
    f"needle_{REAL}",
    f"needle_2k_{REAL}",
    f"reading_known_{REAL}",
    f"reading_{REAL}",
)
"""Sweeps of the real model: one number of a text, in texts of 1,000 and 2,000 tokens; and two at
once, with the question before the text is compressed, and after."""
READINGS = {
    "perplexity": ("losses",),
    "needle": ("missed",),
    f"perplexity_{REAL}": ("losses",),
    f"output_errors_{REAL}": ("output_error",),
}
"""The commands whose results lie in the package, and the figures that they measure."""
STORED = (*SWEEPS, *REAL_SWEEPS, *READINGS)


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


def read_tables(kind: type[Any], name: str) -> Iterator[Any]:
    """Yield the tables of a name in ``contrasts.toml``.

    Raises:
        ValueError: if a key is missing or unknown, or a value is not allowed.
    """
    text = (HERE / "contrasts.toml").read_text(encoding="utf-8")
    keys = {field.name for field in fields(kind)}
    required = {field.name for field in fields(kind) if field.default is MISSING}
    for number, written in enumerate(tomllib.loads(text)[name], start=1):
        if not required <= written.keys() <= keys:
            wrong = ", ".join(sorted((required - written.keys()) | (written.keys() - keys)))
            raise ValueError(f"{name} number {number}: missing or unknown: {wrong}")
        yield kind(**written)


def stored_directory(name: str) -> Path:
    """Return the directory of a sweep in the package."""
    check_choice((*SWEEPS, *OTHER_SWEEPS, *REAL_SWEEPS), name=name)
    return RESULTS / name


@cache
def stored_summary(name: str) -> TaskSummary:
    """Return the summary of a sweep or a command whose results lie in the package."""
    if name in READINGS:
        return stored_reading(name)
    from kvlab.fast.lab.sweep.run import read_stored  # needs pyarrow

    (summary,) = summarise(read_stored(stored_directory(name)))
    return summary


def stored_reading(name: str) -> TaskSummary:
    """Return what one of `READINGS` found, as the summary of a task."""
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    if "reading" in found:
        length = found.get("mean_length") or fmean(found["lengths"])
        texts = found["reading"]["budgets"]
        budgets = {text: budget_entries(text, round(length)) for text in texts}
    else:
        length = fmean(map(sum, found["texts"]))
        entries = {row["budget"] for row in found["rows"]} - {None}
        budgets = {f"{each / length:.0%}": each for each in entries}
    points = [stored_point(row, budgets, READINGS[name]) for row in found["rows"]]
    model = found.get("model", REAL if name.endswith(REAL) else "reasoner")
    return TaskSummary(model, name, budgets, length, (0,), tuple(points), (), {})


def stored_point(
    row: Mapping[str, Any], budgets: Mapping[str, int], figures: Sequence[str]
) -> Point:
    """Return a row of one of `READINGS`: one value of every figure per text."""
    values = {name: tuple(row.get("figures", row)[name]) for name in figures}
    count, refusal = len(values[figures[0]]), row.get("refusal")
    budget = budgets.get(row["budget"], row["budget"])
    return Point(
        method=row["method"],
        budget=budget,
        problems=count,
        wanted=count,
        refusal=refusal,
        figures=values,
    )


# --- verdicts ------------------------------------------------------------------------------------


def judge(sources: Sequence[TaskSummary], paper: str | None = None) -> list[tuple[Judged, ...]]:
    """Judge every contrast of a paper, or of all, at every budget that it has.

    Args:
        sources: summaries of what was measured. Of the sources that have both methods, the first
            decides on solved problems, the last on figures.
        paper: one of `kvlab.reference.proofs.PAPERS`; None judges all.

    Raises:
        KeyError: if a contrast was measured nowhere.
    """
    tests = sum(len(each.budgets) for each in contrasts())
    level = 1 - (1 - FAMILY) / tests
    return [
        tuple(judge_one(sources, contrast, budget, level) for budget in contrast.budgets)
        for contrast in contrasts()
        if paper in (None, contrast.paper)
    ]


def judge_one(
    sources: Sequence[TaskSummary], contrast: Contrast, budget: str | None, level: float
) -> Judged:
    """Judge a contrast at one budget.

    Raises:
        KeyError: if the contrast was measured nowhere.
    """
    ours, other = paired(sources, contrast, budget)
    if figure := FIGURES.get(contrast.kind):
        errors = ours.figures[figure], other.figures[figure]
        difference = Interval(*paired_difference(errors[1], errors[0], level, RESAMPLES))
        decided = direction(-difference.high, -difference.low)
        means, others = (Interval(*mean_interval(each)) for each in errors)
        return Judged(contrast, budget, len(errors[0]), means, others, difference, decided)
    pairs = list(zip(other.outcomes, ours.outcomes, strict=True))
    only_other, only_ours = (pairs.count(each) for each in ((True, False), (False, True)))
    counted = paired_shares(only_other, only_ours, len(pairs), level, RESAMPLES)
    difference = Interval(*counted)
    if not any((*ours.outcomes, *other.outcomes)):
        decided = Verdict.FLOOR
    elif contrast.kind == "as many solved":
        decided = closeness(difference)
    else:
        decided = direction(difference.low, difference.high)
    assert ours.interval is not None and other.interval is not None
    return Judged(contrast, budget, len(pairs), ours.interval, other.interval, difference, decided)


def paired(
    sources: Sequence[TaskSummary], contrast: Contrast, budget: str | None
) -> tuple[Point, Point]:
    """Return what both methods of a contrast did on the same problems, from the right source.

    Raises:
        KeyError: if the contrast was measured nowhere.
    """
    figure = FIGURES.get(contrast.kind)
    for source in reversed(sources) if figure else sources:
        if not speaks_of(source, contrast):
            continue
        try:
            ours, other = (
                source.point_at(spec, budget) for spec in (contrast.ours, contrast.other)
            )
        except KeyError:
            continue
        has_it = all(
            figure in point.figures if figure else point.outcomes for point in (ours, other)
        )
        if has_it:
            return ours, other
    raise KeyError((contrast.ours, contrast.other, budget))


def speaks_of(source: TaskSummary, contrast: Contrast) -> bool:
    """Say whether a source has the contrast's model, and its task if it is one of `BUDGETS`."""
    if REAL in (source.model, contrast.task):
        return source.model == contrast.task
    return source.task.partition("@")[0] not in BUDGETS or source.task == contrast.task


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
