"""The rules of others by hand (SOL-ExecBench adds both tolerances), and the page's figures."""

import json
from pathlib import Path

import numpy as np

from kvlab.reference.conformance.vectors import Case, Expected
from study.yardsticks import RULES, judged
from support.tables import cases


@cases(__file__, "rules_count_elements_of_a_hundred", "wrong off broken")
def test_rules_count_elements_of_a_hundred(wrong, off, broken):
    x, expected = 1 + off * (np.arange(100) < wrong), Expected("numbers", np.ones(100))
    case = Case("", "", "", None, {}, {}, {})
    assert judged(case, expected, x, 0.02)[0] == {RULES[each] for each in broken}


def test_the_page_has_the_stored_figures():
    found, page = (Path("docs", each) for each in ("images/yardsticks.json", "conformance_bugs.md"))
    for passing in json.loads(found.read_text("utf-8"))["passing"].values():
        figures = (f"{len(bugs)} ({rule})" for rule, bugs in passing.items())
        assert ", ".join(figures) in page.read_text("utf-8")
