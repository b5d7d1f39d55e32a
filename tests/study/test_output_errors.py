"""Output errors along given texts: none without eviction, and a file that is gone on with."""

import json

import pytest
from shapes import shapes_checked
from tolerances import FLOAT32_LOGITS

from kvlab.fast.lab.evaluate.backends import FastBackend
from kvlab.fast.lab.evaluate.perplexity import Passage
from kvlab.reference.models import reasoner_directory
from study import output_errors
from study.output_errors import control, main, measure
from study.side_by_side import OutputChange, read_changes


@pytest.fixture(autouse=True)
def _shapes_are_not_checked():
    with shapes_checked(False):
        yield


def test_what_evicts_nothing_moves_nothing():
    texts = [Passage(list(range(5, 45)), list(range(12, 20))), Passage([9] * 30, [7, 8, 9])]
    asked = [("h2o", 1000), ("h2o", 12), ("random", 12)]
    whole, half, chance = measure(FastBackend(reasoner_directory()), texts, asked)
    for figure in ("output_error", "kl"):
        assert whole.interval(figure).high < FLOAT32_LOGITS
        assert half.interval(figure).low > 10 * FLOAT32_LOGITS
    assert whole.figures["agreement"] == [1.0, 1.0]
    assert half.figures["entries"] == [12.0, 12.0]
    assert control([whole, half, chance], 12) is chance


def test_differences_are_paired():
    rows = [
        OutputChange(name, 4, {"kl": kl})
        for name, kl in (("h2o", [1.0, 2.0]), ("random", [2.0, 4.0]))
    ]
    difference = rows[0].difference_from(rows[1], "kl")
    assert (difference.mean, difference.low, difference.high) == (-1.5, -2.0, -1.0)


def test_a_measurement_goes_on_where_it_stands(tmp_path, monkeypatch):
    out = tmp_path / "errors.json"
    main("h2o", out, passages=2, budgets="50%")
    before = json.loads(out.read_text(encoding="utf-8"))
    asked = []

    def nothing(backend, texts, points):
        asked.extend(points)
        return iter(())

    monkeypatch.setattr(output_errors, "measure", nothing)
    main("h2o;tova", out, passages=2, budgets="50%")
    assert [method for method, _ in asked] == ["tova"]
    (row,) = read_changes(before)
    assert (row.method, row.budget) == ("h2o", asked[0][1])
    with pytest.raises(ValueError, match="other texts or another model"):
        main("h2o", out, passages=3)
