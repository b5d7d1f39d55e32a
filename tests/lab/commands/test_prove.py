"""``kvlab prove``, as it is typed."""

import json
from concurrent.futures import Future

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


class Inline:
    """A pool that runs at once: other processes would not see the claims of a test."""

    def __init__(self, workers):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, function, *arguments):
        done = Future()
        done.set_result(function(*arguments))
        return done


@pytest.fixture
def prove(monkeypatch):
    """Run the command on checks that are registered as proved."""

    def run(*checks, options=()):
        paper = Paper("caote", "CAOTE", "arXiv")
        for number, check in enumerate(checks):
            paper.printed(f"CA-{number}", "Theorem", Verdict.PROVED)(check)
        monkeypatch.setattr(proofs, "paper", lambda name: paper)
        monkeypatch.setattr(proofs, "ProcessPoolExecutor", Inline)
        return CliRunner().invoke(app, ["prove", "--paper", "caote", *options])

    return run


def test_a_claim_that_ends_as_registered(prove):
    result = prove(right, options=["--json"])
    assert result.exit_code == 0
    [found] = json.loads(result.stdout)
    told = {"claim": "CA-0", "statement": "One is one.", "kind": "printed claim"}
    told |= {"verdict": "proved symbolically", "as_expected": True, "figures": {"factor": 1.0}}
    assert found.items() >= told.items()


def test_another_verdict_than_registered_ends_with_one(prove):
    result = prove(right, wrong)
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
