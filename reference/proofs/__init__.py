"""What the papers claim, what they leave open and what we found, as executable checks.

One file per paper; each statement is one function, and `prove` runs them.
"""

import importlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass

from kvlab.reference.processes import process_pool
from kvlab.reference.proofs.claim import ON_OTHER_MODELS, Claim, Finding, Kind, Paper, Verdict

PAPERS = ("lazy_eviction", "caote", "desirekv", "ahakv")
"""Files of this folder that hold claims, by the name of the method in the registry."""


@dataclass(frozen=True)
class Result:
    """A claim, what its check found, and how long that took."""

    claim: Claim
    finding: Finding
    seconds: float

    @property
    def name(self) -> str:
        """Paper and tag."""
        return f"{self.claim.paper} {self.claim.tag}"

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the one under which the claim is registered."""
        return self.finding.verdict is self.claim.expected


def paper(name: str) -> Paper:
    """Return a paper with its claims."""
    if name not in PAPERS:
        raise ValueError(f"paper = {name!r} must be one of {', '.join(PAPERS)}")
    return importlib.import_module(f"kvlab.reference.proofs.{name}").PAPER


def claims(paper_name: str | None = None, tags: Sequence[str] | None = None) -> list[Claim]:
    """Return the claims of one paper, or of all, or those with the given tags."""
    names = PAPERS if paper_name is None else (paper_name,)
    found = [claim for name in names for claim in paper(name).claims]
    known = [claim.tag for claim in found]
    if unknown := [tag for tag in tags or () if tag not in known]:
        raise ValueError(f"claim = {unknown[0]!r} must be one of {', '.join(known)}")
    return [claim for claim in found if not tags or claim.tag in tags]


def count(claims: Sequence[Claim]) -> str:
    """Count claims by kind, and how many of the printed ones do not hold, in words."""
    printed, readings, ours = (sum(claim.kind is kind for claim in claims) for kind in Kind)
    refuted = sum(claim.expected is Verdict.REFUTED for claim in claims)
    elsewhere = sum(claim.expected in ON_OTHER_MODELS for claim in claims)
    others = f" and {elsewhere} not found on all of our models" if elsewhere else ""
    return (
        f"{refuted} of {printed} printed claims refuted{others}; interpretations: {readings}; "
        f"findings of ours: {ours}"
    )


def prove(chosen: Sequence[Claim], workers: int = 1) -> Iterator[Result]:
    """Check claims by so many processes, in the order in which the checks end."""
    with process_pool(workers) as submit:
        running = {
            submit(_timed, claim.paper, paper(claim.paper).claims.index(claim)): claim
            for claim in chosen
        }
        for done in as_completed(running):
            finding, seconds = done.result()
            yield Result(running[done], finding, seconds)


def _timed(paper_name: str, index: int) -> tuple[Finding, float]:
    started = time.perf_counter()
    finding = paper(paper_name).claims[index].check()
    return finding, time.perf_counter() - started
