"""A statement about a paper as a function that checks it, and what the check found."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial, partialmethod

import numpy as np


class Kind(StrEnum):
    """Who makes a statement."""

    PRINTED = "printed claim"
    """The paper prints it at the named place, with the conditions that the statement repeats."""
    INTERPRETATION = "interpretation"
    """What the paper leaves open; understood like this, its formulas and figures fit."""
    OURS = "finding of ours"
    """No paper prints it."""


class Verdict(StrEnum):
    """How a statement ended."""

    PROVED = "proved symbolically"
    """The statement is proved by algebra, for every size."""
    EXHAUSTIVE = "holds in every case"
    """The statement holds in exact arithmetic in every case of a stated finite domain."""
    EXAMPLE = "example found"
    """The statement says that something can happen; a search found the smallest case of it."""
    FIGURES = "agrees with the paper's own figures"
    """The statement follows from figures that the paper prints, whatever our models show."""
    VERIFIED = "verified numerically"
    """The statement holds for every sampled input of a stated domain, within a tolerance."""
    ASYMPTOTIC = "holds asymptotically"
    """The statement is approached as a size grows; the finite-size error is measured."""
    EMBEDDED_ALONE = "holds on the embedded model, not on SmolLM2"
    SMOLLM2_ALONE = "holds on SmolLM2, not on the embedded model"
    NOT_FOUND = "not found on our models"
    """A printed measurement on other models that none of ours shows."""
    REFUTED = "refuted as printed"
    """A counterexample was found; if an interpretation makes it true, that was checked too."""

    @property
    def fails(self) -> bool:
        """Whether it is refuted, or printed of other models and not shown by all of ours."""
        return self is Verdict.REFUTED or self in ON_OTHER_MODELS


ON_OTHER_MODELS = (Verdict.NOT_FOUND, Verdict.EMBEDDED_ALONE, Verdict.SMOLLM2_ALONE)
"""How a printed measurement ends that one of our models, or both, do not show."""


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    verdict: Verdict
    evidence: str
    """What was computed, over which domain, with which result."""
    counterexample: str = ""
    """The smallest input found that contradicts the statement."""
    true_statement: str = ""
    """The statement that is true instead, which the same check confirmed."""


proved = partial(Finding, Verdict.PROVED)
exhaustive = partial(Finding, Verdict.EXHAUSTIVE)
example = partial(Finding, Verdict.EXAMPLE)
verified = partial(Finding, Verdict.VERIFIED)
asymptotic = partial(Finding, Verdict.ASYMPTOTIC)


def refuted(counterexample: str, evidence: str = "") -> Finding:
    """The statement is contradicted."""
    return Finding(Verdict.REFUTED, evidence, counterexample)


def judged(
    counterexample: str, evidence: str, true_statement: str = "", confirmed: bool | np.bool = True
) -> Finding:
    """A statement holds unless there is a counterexample, which may be empty.

    ``true_statement`` is what is true instead; it is offered only where it was confirmed.
    """
    if not counterexample:
        return verified(evidence)
    return Finding(Verdict.REFUTED, evidence, counterexample, true_statement if confirmed else "")


def measured(holds: bool | np.bool, evidence: str, verdict: Verdict = Verdict.VERIFIED) -> Finding:
    """A statement on what was computed: the evidence shows whether it holds."""
    return Finding(verdict, evidence) if holds else refuted(evidence)


def over_models(here: tuple[bool | np.bool, str] | None, there: tuple[bool, str]) -> Finding:
    """Whether the embedded model and SmolLM2 show what is printed, and what each of them shows.

    ``here`` is None if the embedded model cannot tell.
    """
    shown = {"embedded model": here, "SmolLM2": there}
    told = {name: (bool(each[0]), each[1]) for name, each in shown.items() if each}
    holding = [name for name, (holds, _) in told.items() if holds]
    right, wrong = (
        "; ".join(f"{name}: {words}" for name, (holds, words) in told.items() if holds is truth)
        for truth in (True, False)
    )
    if not wrong:
        return verified(right)
    verdicts = {"embedded model": Verdict.EMBEDDED_ALONE, "SmolLM2": Verdict.SMOLLM2_ALONE}
    verdict = verdicts[holding[0]] if holding else Verdict.NOT_FOUND
    return Finding(verdict, right or "none shows it", wrong)


def tabulated(
    contradictions: Sequence[str],
    total: int,
    what: str,
    true_statement: str = "",
    confirmed: bool = True,
) -> Finding:
    """Judge a statement by the paper's own figures, of which ``total`` were looked at.

    ``what`` is what the agreeing ones are and do, such as "averages are the mean of their row".
    """
    evidence = f"{total - len(contradictions)} of {total} {what}"
    if not contradictions:
        return Finding(Verdict.FIGURES, evidence)
    return judged("; ".join(contradictions), evidence, true_statement, confirmed)


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
    name: str
    """The check's name."""
    statement: str
    """The statement, in words."""
    check: Callable[[], Finding]


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
    ) -> Callable[[Callable[[], Finding]], Callable[[], Finding]]:
        """Register a check, whose docstring begins with the statement; see `Claim`."""

        def register(check: Callable[[], Finding]) -> Callable[[], Finding]:
            statement = " ".join((inspect.getdoc(check) or "").split("\n\n")[0].split())
            name = check.__name__
            claim = Claim(self.name, tag, kind, source, expected, topics, name, statement, check)
            self.claims.append(claim)
            return check

        return register

    printed = partialmethod(claim, Kind.PRINTED)
    interpretation = partialmethod(claim, Kind.INTERPRETATION)
    ours = partialmethod(claim, Kind.OURS)
