"""What every paper's test does with its claims: run them, and falsify them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvlab.fast.models import reasoner_directory
from kvlab.reference.proofs import Claim, Finding, Paper, Verdict

MODEL: Path = reasoner_directory()

Perturbations = Mapping[str, Sequence[Mapping[str, Any]]]
"""Name of a check → other values for its parameters, each of which makes the statement false."""


def claim_tests(
    paper: Paper, perturbations: Perturbations
) -> tuple[Callable[..., None], Callable[..., None], Callable[..., None]]:
    """Return the tests that every paper's claims have to pass, for the test file to name."""
    every_claim = pytest.mark.parametrize("claim", paper.claims, ids=lambda claim: claim.name)

    @every_claim
    def test_claims_hold(claim: Claim) -> None:
        finding = claim.run(MODEL)
        assert finding.verdict is claim.expected, finding
        assert finding.evidence, "a finding says what was computed"
        assert (finding.verdict is Verdict.REFUTED) == bool(finding.counterexample)

    def test_every_claim_is_perturbed() -> None:
        assert set(perturbations) == {claim.name for claim in paper.claims}
        for claim in paper.claims:
            both_ways = claim.expected is Verdict.REFUTED and bool(claim.run(MODEL).reading)
            assert len(perturbations[claim.name]) >= (2 if both_ways else 1), claim.name

    @every_claim
    def test_perturbed_claims_are_falsified(claim: Claim) -> None:
        for instead in perturbations[claim.name]:
            assert is_falsified(claim, claim.run(MODEL, **instead)), instead

    return test_claims_hold, test_every_claim_is_perturbed, test_perturbed_claims_are_falsified


def is_falsified(claim: Claim, finding: Finding) -> bool:
    """Whether a perturbed check noticed.

    A claim that holds has to be refuted. One that is refuted as printed is either put right, and
    then no longer refuted, or its reading is put wrong, and then no longer offered.
    """
    if claim.expected is not Verdict.REFUTED:
        return finding.verdict is Verdict.REFUTED
    return finding.verdict is not Verdict.REFUTED or not finding.reading
