"""Every claim of the papers ends as registered, and its check tells neighbours apart."""

import ast
import inspect
import json
import re
import tomllib
from pathlib import Path

import pytest

from kvlab.reference import methods
from kvlab.reference.proofs import PAPERS, claims, count, paper
from kvlab.reference.proofs.claim import Kind, Verdict
from kvlab.reference.proofs.ledger import ledger
from kvlab.reference.proofs.tables import FILE, table_claims
from support.planted import changed, planted
from support.sampling import sampled
from support.tables import cases

ALL = claims()
FROM_TABLES = {claim.tag for name in PAPERS for claim in table_claims(name)}
NEIGHBOURS = tomllib.loads((Path(__file__).parent / "neighbours.toml").read_text("utf-8"))
ITEMS = json.loads((Path(__file__).parents[2] / "docs" / "claims.json").read_text("utf-8"))
WRITTEN = {tag: finding for item in ITEMS for tag, finding in item["claims"].items()}
DEAR = {"AK-2c", "AK-3", "CA-6b", "DE-4b", "DE-7b", "DE-8", "DE-13", "LE-13", "LE-15"}
"""Claims that take long to check: they and all of their neighbours are slow."""
QUICK = [claim for claim in ALL if claim.tag not in DEAR]


def planted_neighbours():
    """Yield claims with their neighbours; without -m slow the first one of each third claim."""
    for place, claim in enumerate(ALL):
        for number, each in enumerate(NEIGHBOURS.get(claim.tag, ())):
            kind = next(kind for kind in ("true", "false", "bent") if kind in each)
            marks = pytest.mark.slow if number or place % 3 or claim.tag in DEAR else ()
            yield pytest.param(claim, each, id=f"{claim.tag}: {each[kind]}", marks=marks)


@pytest.mark.parametrize("claim", sampled(ALL, QUICK), ids=lambda each: f"{each.paper}-{each.tag}")
def test_a_claim_ends_as_registered(claim):
    finding = claim.check()
    assert claim.statement and claim.source
    assert finding.verdict is claim.expected, finding
    assert finding.evidence, "a finding says what was computed"
    assert finding.verdict.fails == bool(finding.counterexample)
    assert not finding.verdict.fails or claim.kind is Kind.PRINTED
    assert as_written(claim.tag, finding), finding


NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?%?")
ROUNDING = 1e-6
"""Figures below it are errors of float32 or float64, which depend on the machine."""


def as_written(tag, finding) -> bool:
    """Whether a finding has the words and figures of docs/claims.json."""
    return all(
        NUMBER.split(words) == NUMBER.split(getattr(finding, name))
        and all(map(alike, NUMBER.findall(words), NUMBER.findall(getattr(finding, name))))
        for name, words in WRITTEN[tag].items()
        if name in ("evidence", "counterexample", "true_statement")
    )


def alike(one: str, other: str) -> bool:
    """Whether two figures are equal; rounded ones may differ by a unit of the last digit."""
    if one == other or one.isdigit() or other.isdigit():
        return one == other
    x, y = (float(each.rstrip("%").replace(",", "")) for each in (one, other))
    digits, _, power = one.rstrip("%").partition("e")
    unit = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    return abs(x - y) < 1.5 * unit or max(x, y) < ROUNDING


@cases(__file__, "figures_that_count_have_to_be_equal", "one other same")
def test_figures_that_count_have_to_be_equal(one, other, same):
    assert alike(one, other) == same


def test_every_claim_has_neighbours():
    for claim in ALL:
        own, fails = NEIGHBOURS[claim.tag], claim.expected.fails
        assert any("true" in each for each in own) == fails
        nothing_true = fails and not WRITTEN[claim.tag].get("true_statement")
        assert any("false" in each for each in own) or nothing_true


@pytest.mark.parametrize(("claim", "neighbour"), [*planted_neighbours()])
def test_neighbours_are_told_apart(claim, neighbour):
    finding = check_planted(claim, neighbour)
    if "bent" in neighbour:
        assert finding.verdict is claim.expected and not as_written(claim.tag, finding), finding
    elif "true" in neighbour:
        assert not finding.verdict.fails, finding
    elif claim.expected is Verdict.REFUTED:
        assert finding.verdict is Verdict.REFUTED and not finding.true_statement, finding
    else:
        assert finding.verdict.fails and finding.verdict is not claim.expected, finding


def check_planted(claim, neighbour):
    """Check what a claim becomes when its text is changed."""
    changes = neighbour.get("changes") or [(neighbour["right"], neighbour["wrong"])]
    if claim.tag in FROM_TABLES:
        text = changed(Path(str(FILE)), changes)
        return next(x for x in table_claims(claim.paper, text) if x.tag == claim.tag).check()
    with planted(f"kvlab.reference.proofs.{claim.paper}", changes) as module:
        return next(x for x in module.PAPER.claims if x.tag == claim.tag).check()


@pytest.mark.parametrize("name", PAPERS)
def test_topics_are_divergences_of_the_method(name):
    known = {each.topic for each in methods.divergences(name)}
    for claim in paper(name).claims:
        assert set(claim.topics) <= known, (claim.tag, known)


def test_readme_and_page_count_them():
    wrong = [claim.expected is Verdict.REFUTED for claim in ALL if claim.kind is Kind.PRINTED]
    for name in ("README.md", "docs/claims.md"):
        page = " ".join((Path(__file__).parents[2] / name).read_text("utf-8").split())
        assert f"Of {len(wrong)} statements of the four papers, {sum(wrong)} do not hold" in page


@pytest.mark.parametrize("row", ledger(), ids=lambda row: f"{row.paper}-{row.place}")
def test_a_verified_claim_has_seen_what_its_row_measured_on_smollm2(row):
    """What a paper measures is not verified by the embedded model alone."""
    if row.claims and any(each.where.startswith("model smollm2") for each in row.measured):
        for claim in claims(row.paper, row.claims):
            if claim.kind is Kind.PRINTED and claim.expected is Verdict.VERIFIED:
                assert "SmolLM2: " in WRITTEN[claim.tag]["evidence"], claim.tag


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


def test_names_and_tags_are_unique_and_checks_have_no_parameters():
    assert len({(claim.paper, claim.name) for claim in ALL}) == len(ALL)
    assert len({claim.tag for claim in ALL}) == len(ALL)
    assert not [each.tag for each in ALL if inspect.signature(each.check).parameters]


def test_unknown_papers_and_claims_are_refused():
    with pytest.raises(ValueError, match="paper = 'h2o' must be one of lazy_eviction, caote"):
        claims("h2o")
    with pytest.raises(ValueError, match="claim = 'XX-1' must be one of CA-1, CA-2"):
        claims("caote", ["CA-1", "XX-1"])


def test_a_path_without_figures_is_refused():
    text = changed(Path(str(FILE)), [('rows = ["differences/*"]', 'rows = ["difference/*"]')])
    claim = next(each for each in table_claims("lazy_eviction", text) if each.tag == "LE-12d")
    with pytest.raises(ValueError, match=r"path = 'difference/\*' names no printed figure"):
        claim.check()


def test_claims_are_chosen_by_tag_in_the_order_of_the_file():
    found = [claim.tag for claim in claims(None, ["CA-2", "LE-8", "CA-1"])]
    assert found == ["LE-8", "CA-1", "CA-2"]


def test_claims_are_counted_by_kind():
    chosen = claims(None, ["CA-1", "CA-2c", "CA-9", "CA-3", "LE-13"])
    assert count(chosen) == (
        "1 of 3 printed claims refuted and 1 not found on all of our models; interpretations: 1; "
        "findings of ours: 1"
    )
