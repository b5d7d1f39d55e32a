"""Points at equal bytes: their kinds, their Pareto front by hand, and the tables as stored."""

import json
from pathlib import Path

import pytest

from kvlab.fast.lab.evaluate.statistics import Interval
from kvlab.fast.lab.tables import Bold, text_of
from study import equal_bytes
from study.contrasts import RESULTS, stored_summary
from study.equal_bytes import Panel, Place

PERCENT = 0.01
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def panels():
    return equal_bytes.read_panels()


def place(share: float, mean: float, method: str = "h2o") -> Place:
    return Place(method, "", share, Interval(mean, mean - 0.1, mean + 0.1), 10)


@pytest.mark.parametrize(
    ("more", "expected"),
    [(True, [(0.2, 0.1), (0.3, 0.5), (0.5, 0.6)]), (False, [(0.2, 0.0)])],
)
def test_the_front_by_hand(more, expected):
    """Of equal bytes the better; what is as good and larger is not on it."""
    pairs = [(0.3, 0.4), (0.2, 0.0), (0.5, 0.6), (0.2, 0.1), (0.4, 0.5), (0.3, 0.5), (0.9, 0.6)]
    front = Panel("", "", tuple(place(*pair) for pair in pairs), more).front
    assert [(each.share, each.quality.mean) for each in front] == expected


@pytest.mark.parametrize(
    ("method", "kind", "label"),
    [
        ("full", "full cache", "full"),
        ("full@precision=fp8", "quantisation alone", "fp8"),
        ("kivi@key_bits=4,value_bits=4", "quantisation alone", "kivi"),
        ("h2o@recent=25", "eviction alone", "h2o"),
        ("h2o@precision=full", "eviction alone", "h2o full"),
        ("caote:h2o@precision=nvfp4", "both", "caote:h2o nvfp4"),
        ("random@recent=16,precision=fp8", "at random, the control", "random fp8"),
    ],
)
def test_kinds_and_labels(method, kind, label):
    assert (place(0.5, 0.5, method).kind, place(0.5, 0.5, method).label) == (kind, label)


def test_tables_say_what_is_stored(panels):
    shown = {(row[0], row[2]): row for row in equal_bytes.table(panels[0]).rows}
    for name in ("study", "equal_bytes"):
        found = stored_summary(name)
        whole = found.point("full", None).mean("nbytes")
        assert whole
        for text, entries in {"": None, **found.budgets}.items():
            for point in found.points:
                row = shown.get((point.method, text.replace("%", " %")))
                if point.budget != entries or row is None or point.method == "full":
                    continue
                nbytes = point.mean("nbytes")
                assert nbytes and point.interval
                assert row[3] == f"{100 * nbytes / whole:.1f}"
                low, high = 100 * point.interval.low, 100 * point.interval.high
                assert text_of(row[4]) == f"{100 * point.interval.mean:.1f} ({low:.1f}–{high:.1f})"
    assert {text_of(row[4]) for row in shown.values() if isinstance(row[4], Bold)} == {
        text_of(equal_bytes.cells(each, True, True)[4]) for each in panels[0].front
    }
    named = {point.method for point in stored_summary("equal_bytes").points}
    assert named <= {method for method, _ in shown}, "a point of the sweep is missing"


def test_scales_are_counted(panels):
    """32 channels: 4 bits and 8/16 of a scale, of 16 bits; one float32 per layer and kind."""
    (coded,) = (each for each in panels[0].places if each.method == "full@precision=nvfp4")
    assert 4.5 / 16 < coded.share < 4.5 / 16 + 0.001


def test_the_control_is_in_every_panel(panels):
    assert all(any(each.method.startswith("random") for each in p.places) for p in panels)
    for panel in panels:
        assert panel.title in equal_bytes.chart(panels).svg


def test_what_the_page_says_of_fp8_and_kivi(panels):
    at = {(each.method, each.budget): each for each in panels[0].places}
    fp8, caote = at["full@precision=fp8", ""], at["caote:h2o", "50 %"]
    kivi = at[equal_bytes.ALONE[0], ""]
    assert fp8.share == pytest.approx(caote.share, abs=PERCENT)
    assert fp8.quality.high < caote.quality.low
    assert kivi.share < 0.35 and kivi.quality.high > caote.quality.low


def test_rows_of_perplexities_by_hand():
    """Bytes where they are counted, else entries; a budget of 128 of 512 tokens is 25 %."""
    common = {"refusal": None, "nats": 0.1, "nats_low": 0.0, "nats_high": 0.2}
    rows = [
        {**common, "method": "full", "budget": None, "entries": 512},
        {**common, "method": "h2o", "budget": 128, "entries": 128},
        {**common, "method": "tova", "budget": 64, "refusal": "too small"},
    ]
    full, h2o = equal_bytes.places_of_rows({"rows": rows, "mean_length": 512})
    assert (full.share, h2o.share, h2o.budget) == (1, 0.25, "25 %")
    counted = [{**row, "nbytes": nbytes} for row, nbytes in zip(rows, (800, 100), strict=False)]
    assert equal_bytes.places_of_rows({"rows": counted, "mean_length": 512})[1].share == 1 / 8


def test_losses_of_the_real_model_are_those_that_are_stored(panels):
    path = RESULTS / "perplexity_smollm2.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    nats = {row["method"]: row["nats"] for row in stored["rows"] if row["budget"] == 128}
    shown = {each.method: each for each in panels[1].places if each.budget in ("", "25 %")}
    for method in equal_bytes.ALONE_REAL[1:]:
        assert shown[method].quality.mean == nats[method]
    assert shown["full"].share == 1 and shown["full"].quality.mean == 0


def test_the_pages_ask_for_it():
    assert (DOCS / "index.md").read_text().count("<!-- equal bytes -->") == 1
    assert (DOCS / "precisions.md").read_text().count("{{ equal bytes }}") == 1
