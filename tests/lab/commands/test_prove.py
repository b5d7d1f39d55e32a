"""``kvlab prove``, as it is typed."""

import json

import pytest
from typer.testing import CliRunner

from kvlab.fast.lab.cli import app
from kvlab.reference import proofs
from kvlab.reference.proofs.claim import Claim, Finding, Paper, Verdict, proved, refuted


def right() -> Finding:
    """One is one."""
    return proved("1 = 1", figures={"factor": 1.0})


def wrong() -> Finding:
    """One is two."""
    return refuted("1 ≠ 2", "one subtraction")


@pytest.fixture
def two_claims(monkeypatch):
    """One claim that ends as registered, and on request one that does not."""

    def use(*checks):
        paper = Paper("caote", "CAOTE", "arXiv")
        for number, check in enumerate(checks):
            paper.printed(f"CA-{number}", "Theorem", Verdict.PROVED)(check)
        monkeypatch.setattr(proofs, "paper", lambda name: paper)
        monkeypatch.setattr(proofs, "ProcessPoolExecutor", Inline)

    return use


class Inline:
    """A pool that runs at once: other processes would not see the claims of a test."""

    def __init__(self, workers):
        from concurrent.futures import Future

        self.future = Future

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, function, *arguments):
        done = self.future()
        done.set_result(function(*arguments))
        return done


def test_a_claim_that_ends_as_registered(two_claims):
    two_claims(right)
    result = CliRunner().invoke(app, ["prove", "--paper", "caote", "--json"])
    assert result.exit_code == 0
    [found] = json.loads(result.stdout)
    assert found["claim"] == "CA-0"
    assert found["statement"] == "One is one."
    assert found["kind"] == "printed claim"
    assert found["verdict"] == "proved symbolically"
    assert found["as_expected"] is True
    assert found["figures"] == {"factor": 1.0}


def test_another_verdict_than_registered_ends_with_one(two_claims):
    two_claims(right, wrong)
    result = CliRunner().invoke(app, ["prove", "--paper", "caote"])
    assert result.exit_code == 1
    assert "0 of 2 printed claims refuted" in result.stdout
    assert "counterexample: 1 ≠ 2" in result.stdout
    assert "expected: proved symbolically" in result.stderr


def test_claims_are_checked_in_other_processes():
    chosen = proofs.claims("caote", ["CA-1", "CA-2b", "CA-11a"])
    found = list(proofs.prove(chosen, workers=2))
    assert len(found) == len(chosen) == 3
    assert all(result.as_expected for result in found)
    assert isinstance(found[0].claim, Claim)
