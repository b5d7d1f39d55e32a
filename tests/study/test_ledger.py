"""What pages say about results is what is stored, in figures and verdicts, and has a row."""

import re
from dataclasses import replace

import pytest

from kvlab.fast.lab.sweep.run import read_stored
from kvlab.fast.lab.sweep.summary import summarise
from study import stored
from study.ledger import NUMBER, PAGES, SAID, Page, Row, Verdict, flat, read, written
from support.sampling import sampled

SOME = """H2O solves «81.0 (72.2–87.5) %», and that is
«significantly better»."""
ROW = Row(SOME, ['share("h2o")', 'gains("h2o")'], "baselines", "277")
PAGE = Page("a page", re.sub("[«»]", "", SOME).replace(" and", "\nand"), [ROW], [])


SLOW = ("plan", "score_or_protection", "index", "results", "methods/caote")
"""Pages whose figures are computed of many results, or planned over tens of thousands of tokens."""
NAMES = sampled(PAGES, [name for name in PAGES if name not in SLOW])


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_what_is_stored(name):
    assert not list(read(name).faults())


def others(text, item):
    """Yield the text with other figures, and with another verdict."""
    tested = any(isinstance(each, str | Verdict) for each in flat(item))
    for number in NUMBER.finditer(text):
        at = number.end() - 1
        yield f"{text[:at]}{(int(text[at]) + 1) % 10}{text[at + 1 :]}"
    if said := {each.lastgroup for each in SAID.finditer(text)} if tested else ():
        yield SAID.sub("better" if "open" in said else "not significant", text)
    elif not NUMBER.search(text):
        yield "sixteen"


@pytest.mark.parametrize("name", NAMES)
def test_any_other_figure_and_verdict_is_refused(name):
    for row in read(name).rows:
        for text, item in zip(row.texts, row.items(), strict=True):
            wrong = list(others(text, item))
            assert wrong and all(written(each, item) != each for each in wrong), (row.words, text)


def test_words_that_are_not_there_and_results_without_a_row_are_told():
    assert not list(PAGE.faults())
    told, *_ = replace(PAGE, text=PAGE.text.replace("better", "worse")).faults()
    assert told.startswith("a page: not on the page: H2O solves")
    for text in (
        "It takes 29 ms.",
        "It is 1.5 of it.",
        "7 of 9 agree",
        "(3 to 5)",
        "It is faster.",
    ):
        (told,) = replace(PAGE, text=f"{PAGE.text}\n\n{text}").faults()
        assert "has no row" in told
    for text in (
        "`h2o@recent=16`",
        "300 programs of 45 to 65 steps",
        "[a](b.md#7-ms)",
        "<!-- 5 % -->",
    ):
        assert not list(replace(PAGE, text=f"{PAGE.text}\n\n{text}").faults())
    table = "\n\n| a | 4 |\n|--|--|\n| 5 | `6` |\n"
    (told,) = replace(PAGE, text=PAGE.text + table).faults()
    assert "[5]" in told
    (told,) = replace(
        PAGE, text=f"{PAGE.text} It takes 29 ms at 30 %.", settings=["at 30 %"]
    ).faults()
    assert "[29 ms]" in told


def test_a_stored_figure_that_changes_is_noticed_and_written(monkeypatch):
    found = read_stored(stored.RESULTS / "baselines")
    hurt = [x for x in found.rows if (x.method, x.budget, x.solved) == ("h2o", 277, True)][:46]
    rows = [replace(x, solved=False) if x in hurt else x for x in found.rows]
    (other,) = summarise(replace(found, rows=rows))
    monkeypatch.setattr(stored, "stored_summary", lambda name, task: other)
    row = replace(ROW)
    page = replace(PAGE, rows=[row])
    assert sum("must be" in each for each in page.faults()) == 1
    assert not list(page.mended().faults()) and "«35.0 (" in page.mended().rows[0].words
