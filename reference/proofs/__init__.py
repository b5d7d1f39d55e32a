"""The papers' theorems, lemmas, equations and complexity claims as executable checks.

One file per paper; each statement is one function, and `prove` runs them.
"""

import importlib
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from kvlab.reference.proofs.claim import Claim, Finding, Paper, Verdict

__all__ = ["PAPERS", "Claim", "Finding", "Paper", "Result", "Verdict", "claims", "prove"]

PAPERS = ("lazy_eviction", "caote", "desirekv", "ahakv")
"""Files of this folder that hold claims, by the name of the method in the registry."""


@dataclass(frozen=True)
class Result:
    """A claim, what its check found, and how long that took."""

    claim: Claim
    finding: Finding
    seconds: float

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the one under which the claim is registered."""
        return self.finding.verdict is self.claim.expected


def paper(name: str) -> Paper:
    """Return a paper with its claims.

    Raises:
        ValueError: if the paper is not one of `PAPERS`.
    """
    if name not in PAPERS:
        raise ValueError(f"paper = {name!r} must be one of {', '.join(PAPERS)}")
    return importlib.import_module(f"kvlab.reference.proofs.{name}").PAPER


def claims(paper_name: str | None = None) -> list[Claim]:
    """Return the claims of one paper, or of all.

    Raises:
        ValueError: if the paper is not one of `PAPERS`.
    """
    names = PAPERS if paper_name is None else (paper_name,)
    return [claim for name in names for claim in paper(name).claims]


def prove(model: Path, paper_name: str | None = None, workers: int = 1) -> Iterator[Result]:
    """Check every claim of one paper, or of all, in the order in which the checks end.

    Args:
        model: Hugging Face directory of a small model, for the checks that measure on one.
        paper_name: one of `PAPERS`.
        workers: processes.

    Raises:
        ValueError: if the paper is not one of `PAPERS`.
    """
    chosen = claims(paper_name)
    with ProcessPoolExecutor(workers) as pool:
        running = {
            pool.submit(_timed, claim.paper, index, model): claim
            for claim, index in _with_index(chosen)
        }
        for done in as_completed(running):
            finding, seconds = done.result()
            yield Result(running[done], finding, seconds)


def _with_index(chosen: list[Claim]) -> Iterator[tuple[Claim, int]]:
    for claim in chosen:
        yield claim, paper(claim.paper).claims.index(claim)


def _timed(paper_name: str, index: int, model: Path) -> tuple[Finding, float]:
    started = time.perf_counter()
    finding = paper(paper_name).claims[index].run(model)
    return finding, time.perf_counter() - started
