"""Output errors along given texts: none without eviction, and a file of what was measured."""

import json

import pytest
from shapes import shapes_checked
from tolerances import FLOAT32_LOGITS

from kvlab.fast.lab.evaluate.backends import FastBackend
from kvlab.fast.lab.evaluate.perplexity import Passage
from kvlab.reference.models import reasoner_directory
from study.output_errors import main, measure


@pytest.fixture(autouse=True)
def _shapes_are_not_checked():
    with shapes_checked(False):
        yield


def test_what_evicts_nothing_moves_nothing():
    texts = [Passage(list(range(5, 45)), list(range(12, 20))), Passage([9] * 30, [7, 8, 9])]
    found = measure(FastBackend(reasoner_directory()), texts, [("h2o", 1000), ("h2o", 12)])
    whole, half = (row["figures"] for row in found)
    for figure in ("output_error", "kl"):
        assert max(whole[figure]) < FLOAT32_LOGITS
        assert min(half[figure]) > 10 * FLOAT32_LOGITS
    assert whole["agreement"] == [1.0, 1.0]
    assert half["entries"] == [12.0, 12.0]


def test_every_method_has_a_row_in_the_file(tmp_path):
    out = tmp_path / "errors.json"
    main("h2o;tova", out, passages=2, budgets="50%")
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [row["method"] for row in found["rows"]] == ["h2o", "tova"]
    assert all(len(row["figures"]["kl"]) == len(found["texts"]) == 2 for row in found["rows"])
