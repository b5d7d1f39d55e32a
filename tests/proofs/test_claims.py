"""The register of claims, and what holds for every file of proofs."""

import ast
import inspect
from pathlib import Path

import pytest

from kvlab.reference import methods
from kvlab.reference.proofs import PAPERS, Kind, Verdict, claims, count, paper

ALL = claims()


def test_names_and_tags_are_unique():
    assert len({(claim.paper, claim.name) for claim in ALL}) == len(ALL)
    assert len({(claim.paper, claim.tag) for claim in ALL}) == len(ALL)


@pytest.mark.parametrize("claim", ALL, ids=lambda claim: f"{claim.paper}-{claim.tag}")
def test_a_claim_states_itself_and_all_of_its_parameters_have_neighbours(claim):
    assert claim.statement and claim.source
    parameters = inspect.signature(claim.check).parameters
    replaced = {name for neighbour in claim.neighbours for name in neighbour.instead}
    assert set(parameters) - {"model"} == replaced
    for name, parameter in parameters.items():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert (parameter.default is inspect.Parameter.empty) == (name == "model")


@pytest.mark.parametrize("name", PAPERS)
def test_topics_are_divergences_of_the_method(name):
    known = {each.topic for each in methods.divergences(name)}
    for claim in paper(name).claims:
        assert set(claim.topics) <= known, (claim.tag, known)


def test_the_readme_counts_them():
    printed = [claim for claim in ALL if claim.kind is Kind.PRINTED]
    refuted = sum(claim.expected is Verdict.REFUTED for claim in printed)
    readme = " ".join((Path(__file__).parents[2] / "README.md").read_text("utf-8").split())
    assert f"holds {len(ALL)} statements" in readme
    assert f"{refuted} of the {len(printed)} that the papers print do not hold" in readme


JUDGED = ("methods", "policy", "attention", "quantization", "cache", "selection", "windows")
"""Modules whose formulas the checks are about."""


@pytest.mark.parametrize("name", PAPERS)
def test_checks_compute_from_definitions(name):
    """What runs the methods on purpose, to count their operations, is in ``counting.py``."""
    source = Path(inspect.getfile(paper(name).claims[0].check)).read_text("utf-8")
    imported = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    judged = {f"kvlab.reference.{module}" for module in JUDGED}
    assert not [each for each in imported if each.startswith(tuple(judged))]


def test_unknown_papers_and_claims_are_refused():
    with pytest.raises(ValueError, match="paper = 'h2o' must be one of lazy_eviction, caote"):
        claims("h2o")
    with pytest.raises(ValueError, match="claim = 'XX-1' must be one of CA-1, CA-2"):
        claims("caote", ["CA-1", "XX-1"])


def test_claims_are_chosen_by_tag_in_the_order_of_the_file():
    found = [claim.tag for claim in claims(None, ["CA-2", "LE-8", "CA-1"])]
    assert found == ["LE-8", "CA-1", "CA-2"]


def test_claims_are_counted_by_kind():
    chosen = claims(None, ["CA-1", "CA-2c", "CA-9", "CA-3", "LE-13"])
    assert count(chosen) == (
        "1 of 3 printed claims refuted and 1 not found on the embedded model; readings: 1; "
        "findings of ours: 1"
    )
