"""The register of claims, and what holds for every file of proofs."""

import ast
import inspect
from pathlib import Path

import pytest
from perturbed import MODEL

from kvlab.reference import methods
from kvlab.reference.proofs import PAPERS, claims, paper, prove

ALL = claims()


def test_names_and_tags_are_unique():
    assert len({(claim.paper, claim.name) for claim in ALL}) == len(ALL)
    assert len({(claim.paper, claim.tag) for claim in ALL}) == len(ALL)


@pytest.mark.parametrize("claim", ALL, ids=lambda claim: f"{claim.paper}-{claim.tag}")
def test_a_claim_states_itself_and_can_be_perturbed(claim):
    assert claim.statement and claim.source
    parameters = inspect.signature(claim.check).parameters
    assert set(parameters) - {"model"}, "nothing of this claim can be changed"
    for name, parameter in parameters.items():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert (parameter.default is inspect.Parameter.empty) == (name == "model")


@pytest.mark.parametrize("name", PAPERS)
def test_topics_are_divergences_of_the_method(name):
    known = {each.topic for each in methods.divergences(name)}
    for claim in paper(name).claims:
        assert set(claim.topics) <= known, (claim.tag, known)


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


def test_unknown_papers_are_refused():
    with pytest.raises(ValueError, match="paper = 'h2o' must be one of lazy_eviction, caote"):
        list(prove(MODEL, "h2o"))
