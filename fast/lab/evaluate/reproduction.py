"""The papers' contrasts, measured on the embedded reasoner, and what that says about each.

    python -m kvlab.fast.lab.evaluate.reproduction --problems 200

Every method that a contrast names solves the same held-out problems. Results are written after
every method; a run that is started again does what is missing. Where both methods of a contrast are
in the miniature study, whose problems are more, the study decides (`lab.evaluate.study`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kvlab.fast.lab.commands.terminal import progress
from kvlab.fast.lab.evaluate.backends import ReferenceBackend, default_backend, load_backend
from kvlab.fast.lab.evaluate.compare import takes_budget
from kvlab.fast.lab.evaluate.experiments import Contrast, contrasts
from kvlab.fast.lab.evaluate.statistics import paired_difference, paired_shares, wilson
from kvlab.fast.models import reasoner_directory
from kvlab.reference.proofs.errata import Interval
from kvlab.reference.selection import budget_entries
from kvlab.reference.tasks import reasoning

BUDGETS = ("70%", "85%")
SLACK = 1.25
"""Tokens after which an answer is cut, over those of the right solution."""
FAMILY = 0.95
"""Probability that all intervals together hold what they should, by Bonferroni."""
RESAMPLES = 40_000
"""Of every bootstrap; intervals this wide need their tails."""
CLOSE = 0.10
"""Shares of solved problems that differ by less are taken for about as good."""


class Verdict(StrEnum):
    """What a measurement says about a contrast."""

    HOLDS = "holds"
    FAILS = "does not hold here"
    BOTH = "holds at one budget, not at the other"
    UNDECIDED = "undecided here"
    FLOOR = "cannot be tested here: nothing is solved"


@dataclass(frozen=True)
class Outcomes:
    """One method at one budget, over all problems in order."""

    spec: str
    budget: str | None
    """Percent of the mean length; None for methods that take none."""
    solved: tuple[bool, ...]
    errors: tuple[float, ...] = ()
    """Mean error of the attention output, on the first problems; empty if not measured."""

    @property
    def share(self) -> Interval:
        """Share solved, with Wilson's 95 % interval."""
        right, total = sum(self.solved), len(self.solved)
        return Interval(right / total, *wilson(right, total))


@dataclass(frozen=True)
class Reproduction:
    """All that was measured."""

    problems: int
    seeds: tuple[int, ...]
    mean_length: float
    backend: str
    measured: int
    """Problems over which errors were measured."""
    outcomes: tuple[Outcomes, ...] = field(repr=False)

    def of(self, spec: str, budget: str | None) -> Outcomes:
        """Return what a method did; the budget does not matter where it takes none.

        Raises:
            KeyError: if it was not run.
        """
        for each in self.outcomes:
            if each.spec == spec and each.budget in (budget, None):
                return each
        raise KeyError((spec, budget))


@dataclass(frozen=True)
class Judged:
    """A contrast at one budget."""

    contrast: Contrast
    budget: str | None
    problems: int
    """On which both methods were compared."""
    ours: Interval
    other: Interval
    """Shares solved, or mean errors, with 95 % intervals."""
    difference: Interval
    """Ours less the other's, over the same problems; all intervals hold together at `FAMILY`."""
    verdict: Verdict


def load(path: Path | None = None) -> Reproduction:
    """Read the committed results, or those in a file.

    Raises:
        FileNotFoundError: if the file does not exist.
    """
    path = path or default_path()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    stored = json.loads(path.read_text(encoding="utf-8"))
    outcomes = tuple(
        Outcomes(
            each["method"],
            each["budget"],
            tuple(mark == "1" for mark in each["solved"]),
            tuple(each["errors"]),
        )
        for each in stored.pop("outcomes")
    )
    seeds = (stored.pop("seed"),)
    return Reproduction(**stored, seeds=seeds, outcomes=outcomes)


def default_path() -> Path:
    """Return the file of the committed results."""
    return Path(str(files("kvlab.fast.lab.evaluate") / "results" / "reproduction.json"))


# --- verdicts ------------------------------------------------------------------------------------


def judge(sources: Sequence[Reproduction], paper: str | None = None) -> list[tuple[Judged, ...]]:
    """Judge every contrast of a paper, or of all, at every budget that it has.

    Args:
        sources: what was measured; the first that has both methods decides.
        paper: one of `kvlab.reference.proofs.PAPERS`; None for all.

    Raises:
        KeyError: if a contrast was measured nowhere.
    """
    everything = list(contrasts())
    tests = sum(len(list(points(each))) for each in everything)
    level = 1 - (1 - FAMILY) / tests
    return [
        tuple(judged(sources, contrast, budget, level) for budget in points(contrast))
        for contrast in everything
        if paper in (None, contrast.paper)
    ]


def points(contrast: Contrast) -> Iterator[str | None]:
    """Yield the budgets of a contrast: none if neither method takes one."""
    if takes_budget(contrast.ours) or takes_budget(contrast.other):
        yield from BUDGETS
    else:
        yield None


def judged(
    sources: Sequence[Reproduction], contrast: Contrast, budget: str | None, level: float
) -> Judged:
    """Judge a contrast at one budget.

    Raises:
        KeyError: if it was measured nowhere.
    """
    ours, other = paired(sources, contrast, budget)
    if contrast.kind == "smaller error":
        difference = Interval(*paired_difference(other.errors, ours.errors, level, RESAMPLES))
        decided = direction(-difference.high, -difference.low)
        means = mean_interval(ours.errors), mean_interval(other.errors)
        return Judged(contrast, budget, len(ours.errors), *means, difference, decided)
    pairs = list(zip(other.solved, ours.solved, strict=True))
    only_other, only_ours = (pairs.count(each) for each in ((True, False), (False, True)))
    counted = paired_shares(only_other, only_ours, len(pairs), level, RESAMPLES)
    difference = Interval(*counted)
    if not any((*ours.solved, *other.solved)):
        decided = Verdict.FLOOR
    elif contrast.kind == "as many solved":
        decided = closeness(difference)
    else:
        decided = direction(difference.low, difference.high)
    return Judged(contrast, budget, len(pairs), ours.share, other.share, difference, decided)


def paired(
    sources: Sequence[Reproduction], contrast: Contrast, budget: str | None
) -> tuple[Outcomes, Outcomes]:
    """Return what both methods of a contrast did on the same problems, from the first that knows.

    Raises:
        KeyError: if it was measured nowhere.
    """
    for source in sources:
        try:
            ours, other = (source.of(spec, budget) for spec in (contrast.ours, contrast.other))
        except KeyError:
            continue
        if contrast.kind != "smaller error" or (ours.errors and other.errors):
            return ours, other
    raise KeyError((contrast.ours, contrast.other, budget))


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean and its bootstrap interval."""
    return Interval(*paired_difference([0.0] * len(values), values))


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


# --- measuring -----------------------------------------------------------------------------------


def wanted() -> list[tuple[str, str | None]]:
    """Return every method and budget that a contrast needs."""
    found: dict[tuple[str, str | None], None] = {}
    for contrast in contrasts():
        for budget in points(contrast):
            for spec in (contrast.ours, contrast.other):
                found[spec, budget if takes_budget(spec) else None] = None
    return list(found)


def with_errors() -> set[str]:
    """Return the methods whose errors a contrast needs."""
    return {
        spec
        for contrast in contrasts()
        if contrast.kind == "smaller error"
        for spec in (contrast.ours, contrast.other)
    }


def measure(
    problems: Annotated[int, typer.Option(help="Held-out problems.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the problems.")] = 0,
    measured: Annotated[int, typer.Option(help="Problems over which errors are measured.")] = 24,
    out: Annotated[Path | None, typer.Option(help="File to write or to complete.")] = None,
) -> None:
    """Let every method that a contrast names solve the same problems."""
    path = out or default_path()
    asked = reasoning.held_out(problems, seed)
    length = float(np.mean([problem.tokens for problem in asked]))
    stored: dict[str, Any] = {
        "problems": problems,
        "seed": seed,
        "mean_length": length,
        "backend": default_backend(),
        "measured": measured,
        "outcomes": [],
    }
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        if any(before[name] != stored[name] for name in ("problems", "seed", "measured")):
            raise ValueError(f"{path} holds another run; give another --out")
        stored = before
    done = {(each["method"], each["budget"]) for each in stored["outcomes"]}
    missing = [point for point in wanted() if point not in done]
    backend = load_backend(stored["backend"], reasoner_directory())
    reference = ReferenceBackend(reasoner_directory())
    with progress() as bar:
        task = bar.add_task("methods", total=len(missing))
        for spec, budget in missing:
            entries = None if budget is None else budget_entries(budget, round(length))
            row: dict[str, Any] = {"method": spec, "budget": budget, "errors": []}
            row["solved"] = "".join("01"[right] for right in solve(backend, spec, entries, asked))
            if spec in with_errors():
                row["errors"] = errors(reference, spec, entries, asked[:measured])
            stored["outcomes"].append(row)
            path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
            bar.advance(task)


def solve(
    backend: Any, spec: str, budget: int | None, problems: Sequence[reasoning.Problem]
) -> Iterator[bool]:
    """Yield whether each problem was solved; all are written in one batch."""
    prompts = [backend.encode(problem.prompt) for problem in problems]
    solutions = [backend.encode(problem.solution) for problem in problems]
    limits = [int(SLACK * len(solution)) for solution in solutions]
    written, _ = backend.write(spec, budget, prompts, max(limits), solutions[0][-1])
    for problem, tokens, limit in zip(problems, written, limits, strict=True):
        grade = reasoning.grade(problem, backend.decode(tokens[:limit]))
        yield grade.answer_correct and grade.solution_correct


def errors(
    backend: Any, spec: str, budget: int | None, problems: Sequence[reasoning.Problem]
) -> list[float]:
    """Return the mean error of the attention output along the right solution of each problem."""
    prompts = [backend.encode(problem.prompt) for problem in problems]
    solutions = [backend.encode(problem.solution) for problem in problems]
    found = backend.measure(spec, budget, prompts, solutions)
    return [round(float(measurement.output_error.mean()), 6) for measurement, _ in found]


def counts(judgements: Sequence[Sequence[Judged]]) -> Mapping[Verdict, int]:
    """Count the verdicts of contrasts, all budgets put together."""
    told = [overall([each.verdict for each in judged]) for judged in judgements]
    return {verdict: told.count(verdict) for verdict in Verdict}


if __name__ == "__main__":
    typer.run(measure)
