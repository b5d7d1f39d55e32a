"""The page of what the papers claim: complete, and made of what the checks say now."""

import json
import re
from dataclasses import replace
from pathlib import Path

from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.tables import escape_markdown
from kvlab.reference.files import Divergence
from kvlab.reference.proofs import PAPERS, claims, count
from kvlab.reference.proofs.claim import Kind
from kvlab.reference.proofs.ledger import ledger
from study.pages import tables, written
from study.readings import Difference, differences, pairs
from study.stored import stored_summary
from support.tables import cases

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
EFFECT = Interval(-0.25, -0.5, 0.125)


DIFFERENCE = Difference("h2o@every=2", "h2o", "h2o@every=2", 9, 0.5, EFFECT, EFFECT, EFFECT)


def test_an_interval_without_zero_is_bold():
    decided = replace(DIFFERENCE, solved=Interval(0.5, 0.25, 0.75))
    (table,) = tables([decided])
    assert "| **+0.50 (+0.25 to +0.75)** | −0.250 (−0.500 to " in table
    assert Interval(-0.5, -0.75, -0.25).decides and not EFFECT.decides


@cases(__file__, "options_that_can_be_typed_are_found", "option found")
def test_options_that_can_be_typed_are_found(option, found):
    assert Divergence("", "", "", "", option).specifications == tuple(found)


def test_every_option_of_the_papers_was_measured():
    found = differences(stored_summary("readings"), pairs())
    measured = {row.option: row for row in found}
    for pair in pairs():
        row = measured[pair.option]
        assert (row.default_run, row.option_run) == (pair.default_run, pair.option_run)
        assert row.solved.low <= row.solved.mean <= row.solved.high
        assert f"\n| `{pair.option_run}` | " in PAGE.read_text("utf-8")


def test_the_page_holds_every_item_claim_and_reading_of_now():
    page = PAGE.read_text("utf-8")
    tags = re.findall(r"^    \*\*(\w+-\w+)\*\* ", page, re.MULTILINE)
    assert sorted(tags) == sorted(claim.tag for claim in claims())
    for claim in claims():
        source, statement = map(escape_markdown, (claim.source, claim.statement))
        kind = "" if claim.kind is Kind.PRINTED else f"{claim.kind}, "
        placed = claim.source in {row.place for row in ledger() if claim.tag in row.claims}
        stated = f"{kind}*{claim.expected}*). {statement}"
        told = (f"    **{claim.tag}** ({x}{stated}" in page for x in (f"{source}, ", ""))
        assert next(told) or (placed and next(told))
        assert f'<span id="{claim.tag.lower()}"></span>' in page
    for item in json.loads(PAGE.with_suffix(".json").read_text("utf-8")):
        for finding in item["claims"].values():
            assert all(escape_markdown(text) in page for text in finding.values())
    for row in ledger():
        title = f"{row.place}: {escape_markdown(row.says)} (".replace('"', "&quot;")
        _, found_title, after = page.partition(f' "{title}')
        assert found_title
        item = after.partition("\n??? ")[0]
        _, *others = row.commands if row.claims else (None, *row.commands)
        for command in others:
            sweep = re.fullmatch(
                r"kvlab sweep docs/study/results/(\w+)/sweep.toml --out \1", command
            )
            assert (f"`{sweep[1]}`" if sweep else f"\n    {command}\n") in item
        for each in row.measured:
            for name, found in each.figures.items():
                row = rf"^    \|[^|]* `{re.escape(name)}`[^|]* \| (.*) \|$"
                rows = re.findall(row, item, re.MULTILINE)
                assert written(Interval(*found)) in " | ".join(rows).split(" | ")
    for name in PAPERS:
        assert f"method `{name}`: {count(claims(name))}." in page
        assert f"(methods/{name}.md#errata-and-divergences)" in page
