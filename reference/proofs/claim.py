"""A statement about a paper as a function that checks it, and what the check found."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np


class Kind(StrEnum):
    """Who makes a statement."""

    PRINTED = "printed claim"
    """The paper prints it at the named place, with the conditions that the statement repeats."""
    READING = "reading"
    """The paper leaves something open; with this reading its formulas and figures fit together."""
    OURS = "finding of ours"
    """No paper prints it."""


class Verdict(StrEnum):
    """How a statement ended."""

    PROVED = "proved symbolically"
    """The statement is proved by algebra, for every size."""
    EXHAUSTIVE = "holds in every case"
    """The statement holds in exact arithmetic in every case of a stated finite domain."""
    VERIFIED = "verified numerically"
    """The statement holds for every sampled input of a stated domain, within a tolerance."""
    ASYMPTOTIC = "holds asymptotically"
    """The statement is approached as a size grows; the finite-size error is measured."""
    NOT_HERE = "not found on the embedded model"
    """A printed measurement on other models that the embedded model does not show."""
    REFUTED = "refuted as printed"
    """A counterexample was found; if a reading makes it true, that reading was checked too."""

    @property
    def fails(self) -> bool:
        """Whether the statement does not hold."""
        return self in (Verdict.NOT_HERE, Verdict.REFUTED)


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    verdict: Verdict
    evidence: str
    """What was computed, over which domain, with which result."""
    counterexample: str = ""
    """The smallest input found that contradicts the statement."""
    reading: str = ""
    """The statement that is true instead, which the same check confirmed."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Measured values by name, plain numbers and lists, for `--json` and the docs."""


def _ending_as(verdict: Verdict) -> Callable[..., Finding]:
    """Return a function of the evidence, and of figures by name, that makes a finding."""

    def finding(evidence: str, **figures: Any) -> Finding:
        return Finding(verdict, evidence, figures=figures)

    return finding


proved = _ending_as(Verdict.PROVED)
exhaustive = _ending_as(Verdict.EXHAUSTIVE)
verified = _ending_as(Verdict.VERIFIED)
asymptotic = _ending_as(Verdict.ASYMPTOTIC)


def not_here(counterexample: str, evidence: str = "", **figures: Any) -> Finding:
    """The embedded model does not show what is printed of other models."""
    return Finding(Verdict.NOT_HERE, evidence, counterexample, figures=figures)


def refuted(
    counterexample: str,
    evidence: str = "",
    reading: str = "",
    confirmed: bool = True,
    **figures: Any,
) -> Finding:
    """The statement is contradicted; ``reading`` is what is true instead, where confirmed."""
    true_instead = reading if confirmed else ""
    return Finding(Verdict.REFUTED, evidence, counterexample, true_instead, figures)


def measured(holds: bool | np.bool, evidence: str, **figures: Any) -> Finding:
    """A statement on figures that were computed: the evidence shows whether it holds."""
    return verified(evidence, **figures) if holds else refuted(evidence, **figures)


def tabulated(contradictions: Sequence[str], total: int, what: str, reading: str = "") -> Finding:
    """Judge a statement by the paper's own figures.

    Args:
        contradictions: the figures that contradict the statement, in words.
        total: figures or sentences that were looked at.
        what: what the agreeing ones are and do, such as "averages are the mean of their row".
        reading: what is true instead.
    """
    evidence = f"the paper's own figures: {total - len(contradictions)} of {total} {what}"
    if contradictions:
        return refuted("; ".join(contradictions), evidence, reading)
    return verified(evidence)


def sentences(margins: Mapping[str, Sequence[float]], turned: int = 1) -> Finding:
    """Judge sentences on a table by how clearly its figures support them.

    Args:
        margins: sentence → differences of figures that have to be above 0.
        turned: −1 reverses every sentence.
    """
    wrong = [sentence for sentence, each in margins.items() if min(turned * m for m in each) <= 0]
    return tabulated(wrong, len(margins), "sentences agree with their table")


Check = Callable[..., Finding]


@dataclass(frozen=True)
class Neighbour:
    """A statement close to a claim's, as other values for the parameters of its check."""

    words: str
    holds: bool
    """Whether the check has to accept it; a false one is refused, or its reading not offered."""
    instead: Mapping[str, Any]


def false(words: str, /, **instead: Any) -> Callable[[Check], Check]:
    """Name a neighbour that is false: a wrong statement, or a wrong reading of a refuted one."""
    return _neighbour(Neighbour(words, False, instead))


def right(words: str, /, **instead: Any) -> Callable[[Check], Check]:
    """Name the corrected form of a refuted statement."""
    return _neighbour(Neighbour(words, True, instead))


def _neighbour(neighbour: Neighbour) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        check.__dict__["neighbours"] = (neighbour, *check.__dict__.get("neighbours", ()))
        return check

    return add


@dataclass(frozen=True)
class Claim:
    """One statement about a paper, and the function that checks it."""

    paper: str
    """The method's name in the registry."""
    tag: str
    kind: Kind
    source: str
    """Section, equation, theorem, algorithm or table where it is printed, or what it is about."""
    expected: Verdict
    topics: tuple[str, ...]
    """Topics of the method's divergences that this claim is about."""
    check: Check

    @property
    def neighbours(self) -> tuple[Neighbour, ...]:
        """Statements close to this one, which the check has to judge differently."""
        return self.check.__dict__.get("neighbours", ())

    @property
    def name(self) -> str:
        """The check's name."""
        return self.check.__name__

    @property
    def statement(self) -> str:
        """The statement, in words: the first paragraph of the check's docstring."""
        return " ".join((inspect.getdoc(self.check) or "").split("\n\n")[0].split())

    @property
    def needs_model(self) -> bool:
        """Whether the check measures on a language model."""
        return "model" in inspect.signature(self.check).parameters

    def run(self, model: Path, **instead: Any) -> Finding:
        """Check the statement, or what it becomes with other values for its parameters.

        Args:
            model: Hugging Face directory of a small model, for the checks that measure on one.
            instead: other constants, exponents or formulas than the paper's.
        """
        given = {"model": model} if self.needs_model else {}
        return self.check(**given, **instead)


@dataclass(frozen=True)
class Paper:
    """A paper and the claims that its file registers, in the order of the file."""

    name: str
    """The method's name in the registry."""
    title: str
    source: str
    claims: list[Claim] = field(default_factory=list)

    def claim(
        self, kind: Kind, tag: str, source: str, expected: Verdict, *topics: str
    ) -> Callable[[Check], Check]:
        """Register a check under the verdict that it is known to reach; see `Claim`."""

        def register(check: Check) -> Check:
            self.claims.append(Claim(self.name, tag, kind, source, expected, topics, check))
            return check

        return register

    printed = partialmethod(claim, Kind.PRINTED)
    reading = partialmethod(claim, Kind.READING)
    ours = partialmethod(claim, Kind.OURS)
