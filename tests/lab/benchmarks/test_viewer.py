"""The benchmark of the viewer measures what it says; no time is judged here."""

import json
import shutil

import pytest
from typer import BadParameter

from kvlab.fast.lab.benchmarks import viewer
from kvlab.fast.lab.tables import Table
from study import benchmarks as report

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="there is no chromium: apt-get install chromium"
)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TINY = {"tokens": 30, "layers": 2, "kv_heads": 2, "budget": 10}


@needs_chromium
def test_a_tiny_page_is_measured_and_written(tmp_path):
    out = tmp_path / "viewer.json"
    viewer.main(out=out, rounds=1, seconds=0.1, **TINY)
    found = json.loads(out.read_text())
    assert found["parameters"] == {"rounds": 1, "seconds": 0.1, "methods": 2, **TINY}
    assert found["versions"]["chromium"] and found["versions"]["playwright"]
    assert found["page_bytes"] > 10_000
    paints = found["paint_ms"]
    assert paints["first paint"]["median"] > 0 and paints["texts drawn"]["median"] > 0
    assert list(found["frames"]) == list(viewer.MOVEMENTS)
    assert all(each["frames"] >= 1 for each in found["frames"].values())
    assert list(found["change_ms"]) == list(viewer.CHANGES)
    drawn = [block for block in report.result_blocks(out.name, found) if isinstance(block, Table)]
    assert [len(table.rows) for table in drawn] == [5, 6]


@needs_chromium
def test_every_movement_moves_and_every_change_changes(tmp_path):
    path = tmp_path / "view.html"
    viewer.write_synthetic_viewer(path, **TINY)
    with viewer.chromium(None) as browser:
        opened = viewer.OpenedPage(browser, path.as_uri())
        page = opened.page
        page.evaluate(
            "() => { const go = window.go; window.seen = new Set();"
            " window.go = (step) => { go(step); seen.add(Number(find('step').value)); }; }"
        )
        last = int(page.get_attribute("#step", "max"))
        for movement, least in (("drag", 5), ("jump", 5), ("play", 3)):
            page.evaluate("() => seen.clear()")
            while len(seen := set(page.evaluate("() => [...seen]"))) < least:
                opened.ask("move", movement, 1000, "60")
            assert max(seen) <= last, (movement, seen)
            assert page.get_attribute("#play", "aria-pressed") == "false"
        for selector, value in viewer.CHANGES.values():
            assert page.input_value(selector) != value
            opened.ask("change", selector, value)
            assert page.input_value(selector) == value


@needs_chromium
def test_a_page_that_fails_is_not_measured(tmp_path):
    path = tmp_path / "view.html"
    viewer.write_synthetic_viewer(path, **TINY)
    wrong = path.read_text().replace(
        "</body>", "<script>setTimeout(() => { throw Error('broken'); })</script></body>"
    )
    path.write_text(wrong)
    with viewer.chromium(None) as browser, pytest.raises(RuntimeError, match="broken"):
        viewer.measure_round(browser, path.as_uri(), 0.05, 0, lambda: None)


def test_frames_of_all_rounds_are_joined():
    def one(intervals, time):
        moved = dict.fromkeys(viewer.MOVEMENTS, intervals)
        return {"first paint": time, "texts drawn": 2 * time, **moved} | dict.fromkeys(
            viewer.CHANGES, time
        )

    found = viewer.summary([one([10.0] * 4, 100.0), one([40.0] * 2, 300.0), one([20.0] * 3, 200.0)])
    drag = found["frames"]["drag"]
    assert drag["frames"] == 9
    assert drag["frames_per_second"]["rounds"] == [100, 25, 50]
    assert drag["frames_per_second"]["median"] == 50
    assert drag["interval_ms"] == {"median": 20, "percentile_95": 40, "longest": 40}
    assert found["paint_ms"]["texts drawn"]["highest"] == 600
    assert found["change_ms"]["layer"]["lowest"] == 100


def test_a_missing_browser_is_said(tmp_path):
    with (
        pytest.raises(BadParameter, match="absent does not exist"),
        viewer.chromium(tmp_path / "absent"),
    ):
        pass
