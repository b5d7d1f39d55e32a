"""The page of errata: complete, and made of what the checks say now."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.tables import escape_markdown
from kvlab.reference import methods
from kvlab.reference.files import Divergence
from kvlab.reference.proofs import PAPERS, Result, claims, count
from kvlab.reference.proofs.claim import Finding, Kind, Verdict
from study.pages import erratum, reading, tables
from study.readings import Difference, differences, pairs
from study.stored import stored_summary

PAGE = Path(__file__).parents[2] / "docs" / "errata.md"
EFFECT = Interval(-0.25, -0.5, 0.125)


CLAIM = next(claim for claim in claims() if claim.tag == "LE-1")
RESULT = Result(CLAIM, Finding(Verdict.REFUTED, "two sums", "1 + 1", "one is one"), 0.1)
DIFFERENCE = Difference("h2o@every=2", "h2o", "h2o@every=2", 9, 0.5, EFFECT, EFFECT, EFFECT)


def test_an_erratum_names_counterexample_reading_and_option():
    text, stated = erratum(RESULT), escape_markdown(CLAIM.statement)
    for part in ("LE-1: Eq. 2", stated, "1 + 1", "one is one", "h2_reading=printed"):
        assert part in text


def test_a_reading_shows_checks_and_measured_differences():
    divergence = Divergence("H2", "a", "c", "b", "h2o@every=2, or words")
    text = reading(divergence, [RESULT], [DIFFERENCE])
    assert "LE-1" in text
    row = "| `h2o@every=2` | 9 | 0.50 | -0.25 (-0.50 to +0.12) | -0.250"
    assert "Against `h2o`:\n\n" in text
    assert row in text


def test_an_interval_without_zero_is_bold():
    decided = replace(DIFFERENCE, solved=Interval(0.5, 0.25, 0.75))
    (table,) = tables([decided])
    assert "| **+0.50 (+0.25 to +0.75)** | -0.250 (" in table
    assert Interval(-0.5, -0.75, -0.25).decides and not EFFECT.decides


@pytest.mark.parametrize(
    ("option", "found"),
    [
        ("none", ()),
        ("h2o@recent=0", ("h2o@recent=0",)),
        ("caote:snapkv@pool=5, caote:tova; words", ("caote:snapkv@pool=5", "caote:tova")),
        ("rkv@pool=1,kernel=1, or generate(seed=1)", ("rkv@pool=1,kernel=1",)),
    ],
)
def test_options_that_can_be_typed_are_found(option, found):
    assert Divergence("", "", "", "", option).specifications == found


def test_every_option_of_the_papers_was_measured():
    found = differences(stored_summary("readings"), pairs())
    measured = {row.option: row for row in found}
    for pair in pairs():
        row = measured[pair.option]
        assert (row.default_run, row.option_run) == (pair.default_run, pair.option_run)
        assert row.solved.low <= row.solved.mean <= row.solved.high


def test_the_page_holds_every_refutation_and_every_reading_of_now():
    page = PAGE.read_text("utf-8")
    failed = [claim for claim in claims() if claim.expected.fails]
    written = re.findall(r"^#### (\w+-\w+): ", page, re.MULTILINE)
    assert sorted(written) == sorted(claim.tag for claim in failed)
    for claim in failed:
        assert f"#### {claim.tag}: {claim.source}\n\n{escape_markdown(claim.statement)}\n" in page
    for claim in claims():
        if claim.kind is not Kind.PRINTED:
            source, statement = map(escape_markdown, (claim.source, claim.statement))
            assert f"**{claim.tag}** ({source}). {statement}\n" in page
    for name in PAPERS:
        assert f"method `{name}`: {count(claims(name))}." in page
        for divergence in methods.divergences(name):
            assert f"#### {divergence.topic}\n" in page
            assert f"- **Default:** {escape_markdown(divergence.default)}\n" in page
