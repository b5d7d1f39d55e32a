"""A paper's statement as a function that checks it, and what the check found."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Verdict(StrEnum):
    """How a statement ended."""

    PROVED = "proved symbolically"
    """By algebra, for every size."""
    EXHAUSTIVE = "holds in every case"
    """In exact arithmetic for every case of a stated finite domain, such as all sizes up to one."""
    VERIFIED = "verified numerically"
    """Held for every sampled input of a stated domain, within a stated tolerance."""
    ASYMPTOTIC = "holds asymptotically"
    """Approached as a size grows; the finite-size error is measured."""
    REFUTED = "refuted as printed"
    """A counterexample was found; if a reading makes it true, that reading was checked too."""


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


def proved(evidence: str, **figures: Any) -> Finding:
    """The statement holds by algebra."""
    return Finding(Verdict.PROVED, evidence, figures=figures)


def exhaustive(evidence: str, **figures: Any) -> Finding:
    """The statement holds in every case of a finite domain, which the evidence names."""
    return Finding(Verdict.EXHAUSTIVE, evidence, figures=figures)


def verified(evidence: str, **figures: Any) -> Finding:
    """The statement held for every sampled input."""
    return Finding(Verdict.VERIFIED, evidence, figures=figures)


def asymptotic(evidence: str, **figures: Any) -> Finding:
    """The statement is approached; the evidence gives the finite-size error."""
    return Finding(Verdict.ASYMPTOTIC, evidence, figures=figures)


def refuted(counterexample: str, evidence: str = "", reading: str = "", **figures: Any) -> Finding:
    """The statement is contradicted; ``reading`` is what is true instead, if it was confirmed."""
    return Finding(Verdict.REFUTED, evidence, counterexample, reading, figures)


@dataclass(frozen=True)
class Claim:
    """One statement of a paper, and the function that checks it."""

    paper: str
    """The method's name in the registry."""
    tag: str
    source: str
    """Theorem, equation, table or section of the paper."""
    expected: Verdict
    topics: tuple[str, ...]
    """Topics of the method's divergences that this claim is about."""
    check: Callable[..., Finding]

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
        self, tag: str, source: str, expected: Verdict, topics: tuple[str, ...] = ()
    ) -> Callable[[Callable[..., Finding]], Callable[..., Finding]]:
        """Register a check under the verdict that it is known to reach."""

        def register(check: Callable[..., Finding]) -> Callable[..., Finding]:
            self.claims.append(Claim(self.name, tag, source, expected, topics, check))
            return check

        return register
