"""What every paper's test does with its claims: run them, and falsify them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from kvlab.reference.models import reasoner_directory
from kvlab.reference.proofs import Claim, Finding, Kind, Neighbour, Paper, Verdict

MODEL: Path = reasoner_directory()


def claim_tests(paper: Paper) -> tuple[Callable[..., None], ...]:
    """Return the tests that every paper's claims have to pass, for the test file to name."""
    every_claim = pytest.mark.parametrize("claim", paper.claims, ids=lambda claim: claim.name)
    every_neighbour = pytest.mark.parametrize(
        ("claim", "neighbour"),
        [
            pytest.param(
                claim,
                neighbour,
                id=f"{claim.tag}: {neighbour.words}",
                marks=() if is_first(claim, neighbour) else pytest.mark.slow,
            )
            for claim in paper.claims
            for neighbour in claim.neighbours
        ],
    )

    @every_claim
    def test_claims_hold(claim: Claim) -> None:
        finding = found(claim)
        assert finding.verdict is claim.expected, finding
        assert finding.evidence, "a finding says what was computed"
        assert finding.verdict.fails == bool(finding.counterexample)
        assert not finding.verdict.fails or claim.kind is Kind.PRINTED

    @every_claim
    def test_every_claim_has_neighbours(claim: Claim) -> None:
        fails = claim.expected.fails
        assert any(each.holds for each in claim.neighbours) == fails
        assert any(not each.holds for each in claim.neighbours) or (
            fails and not found(claim).reading
        )

    @every_neighbour
    def test_neighbours_are_told_apart(claim: Claim, neighbour: Neighbour) -> None:
        finding = claim.run(MODEL, **neighbour.instead)
        if neighbour.holds or not claim.expected.fails:
            assert finding.verdict.fails != neighbour.holds, finding
        else:
            assert finding.verdict is Verdict.REFUTED and not finding.reading

    return test_claims_hold, test_every_claim_has_neighbours, test_neighbours_are_told_apart


def is_first(claim: Claim, neighbour: Neighbour) -> bool:
    """Whether no neighbour before it has the same verdict: these are tested each time."""
    return neighbour == next(each for each in claim.neighbours if each.holds == neighbour.holds)


@cache
def found(claim: Claim) -> Finding:
    """Run a claim once."""
    return claim.run(MODEL)
