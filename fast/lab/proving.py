"""Checks claims of papers, and keeps what was found until all are checked."""

from collections.abc import Iterator, Sequence

from kvlab.fast.lab.steps import kept_steps
from kvlab.reference import proofs
from kvlab.reference.proofs.claim import Claim


def proved(chosen: Sequence[Claim], workers: int = 1) -> Iterator[proofs.Result]:
    """Check claims as `kvlab.reference.proofs.prove` does, first those that were checked before."""
    with kept_steps("prove", claims=[claim.tag for claim in chosen]) as steps:
        missing = [claim for claim in chosen if claim.tag not in steps.found]
        for claim in chosen:
            if claim not in missing:
                yield proofs.Result(claim, *steps.found[claim.tag])
        for result in proofs.prove(missing, workers) if missing else ():
            steps.keep(result.claim.tag, (result.finding, result.seconds))
            yield result
