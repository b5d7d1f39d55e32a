"""``kvlab prove``, as it is typed."""

import json
from dataclasses import replace

import pytest

from kvlab.reference import proofs
from kvlab.reference.proofs import machine_checked
from kvlab.reference.proofs.claim import Kind, Verdict, proved, refuted
from support.running import invoke

FINDINGS = {
    "One is one.": proved("1 = 1"),
    "One is two.": refuted("1 ≠ 2", "one subtraction"),
}


@pytest.fixture
def prove(monkeypatch):
    """Run the command where checks of claims that are registered as proved end so."""

    def run(*statements, options=()):
        chosen = proofs.claims("caote")[: len(statements)]
        claims = [
            replace(claim, statement=each, kind=Kind.PRINTED, expected=Verdict.PROVED)
            for claim, each in zip(chosen, statements, strict=True)
        ]
        results = [proofs.Result(each, FINDINGS[each.statement], 0.0) for each in claims]
        monkeypatch.setattr(proofs, "claims", lambda paper, tags: claims)
        monkeypatch.setattr(proofs, "prove", lambda chosen, workers: results)
        return invoke("prove", *options)

    return run


def test_a_claim_that_ends_as_registered(prove):
    result = prove("One is one.", options=["--json"])
    assert result.exit_code == 0
    [found] = json.loads(result.stdout)
    told = {"paper": "caote", "statement": "One is one.", "kind": "printed claim"}
    told |= {"verdict": "proved symbolically", "as_expected": True}
    assert found.items() >= told.items()


def test_another_verdict_than_registered_ends_with_one(prove):
    result = prove(*FINDINGS)
    assert result.exit_code == 1
    assert "0 of 2 printed claims refuted" in result.stdout
    assert "counterexample: 1 ≠ 2" in result.stdout
    assert "expected: proved symbolically" in result.stderr


@pytest.mark.slow
def test_claims_are_checked_in_other_processes():
    chosen = proofs.claims("caote", ["CA-1", "CA-2b", "CA-11a"])
    found = list(proofs.prove(chosen, workers=2))
    assert len(found) == len(chosen) == 3
    assert all(result.as_expected for result in found)


@pytest.mark.parametrize(("error", "code"), [("", 0), ("no", 1)])
def test_theorems_that_rocq_accepts_or_not(monkeypatch, error, code):
    theorem = machine_checked.theorems("caote")[0]
    found = machine_checked.Checked(theorem, error, ["Classical_Prop.classic"])
    monkeypatch.setattr(machine_checked, "check", lambda paper: iter([found]))
    result = invoke("prove", "--rocq", "--json")
    [told] = json.loads(result.stdout)
    assert result.exit_code == code and (told["verdict"] == "proved") == (not error)
    shown = invoke("prove", "--rocq").output
    assert f"{1 - code} of 1 theorems accepted" in shown and "assumes Classical_Prop" in shown


def test_without_coqc_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setenv("PATH", "")
    for options, said in ((["--claim", "CA-1"], "leave it out, or --rocq"), ([], "no coqc, which")):
        refused = invoke("prove", "--rocq", *options)
        assert said in str(refused.exception)
