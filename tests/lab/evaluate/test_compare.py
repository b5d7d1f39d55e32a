import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tolerances import DECIMALS
from typer.testing import CliRunner

from kvlab.fast.lab.cli import app
from kvlab.fast.lab.evaluate.statistics import wilson
from kvlab.fast.lab.sweep.compare import compare, tables, write_report
from kvlab.fast.lab.sweep.jobs import in_this_process
from kvlab.fast.lab.sweep.plan import Sweep
from kvlab.reference import methods

SPECS = ("full", "kivi@residual=32", "streaming_llm", "raas")
SHORT = {"models": ("jumps",), "tasks": ("jumps@fewest=3,most=4",), "backend": "reference"}
"""Programs of some 90 tokens."""


@pytest.fixture(scope="module")
def comparison():
    return compare(Sweep(SPECS, ("30%", "90%"), problems=2, seeds=(1,), batch=1, **SHORT))


def rows(comparison, spec):
    points = comparison.to_json()["rows"]
    return [SimpleNamespace(**row) for row in points if row["spec"] == spec]


def test_every_method_has_a_row_at_every_budget(comparison):
    assert [len(rows(comparison, spec)) for spec in SPECS] == [1, 1, 2, 2]
    mean = round(comparison.summary.mean_length)
    assert comparison.summary.budgets == {"30%": -(-3 * mean // 10), "90%": -(-9 * mean // 10)}


def test_the_full_cache_is_the_yardstick(comparison):
    (full,) = rows(comparison, "full")
    assert full.output_error < DECIMALS
    assert full.kl == 0.0
    assert full.agreement == 1.0
    assert full.average_bits == 16.0


def test_streaming_llm_keeps_its_budget_and_pays(comparison):
    small, large = rows(comparison, "streaming_llm")
    assert small.entries == comparison.summary.budgets["30%"]
    assert small.output_error > large.output_error > 0
    assert small.kilobytes < large.kilobytes


def test_kivi_stores_fewer_bits(comparison):
    (kivi,) = rows(comparison, "kivi@residual=32")
    assert 4 < kivi.payload_bits < kivi.average_bits < 16


def test_what_does_not_fit_says_why(comparison):
    small, large = rows(comparison, "raas")
    assert small.refusal.startswith("does not fit 2 of 2 problems: budget = ")
    assert small.accuracy is None
    assert large.refusal is None


def test_the_report_is_self_contained_and_escaped(comparison, tmp_path):
    path = tmp_path / "deep" / "report.html"
    write_report(comparison, path)
    html = path.read_text()
    assert html.count("<svg") == 2
    assert not re.search(r"(src|href)=[\"']https?:", html)
    assert len(tables(comparison)) == 3
    assert "problems solved" in html


def test_the_memory_curve_starts_with_the_prompt(comparison):
    curve = comparison.memory["full"]
    assert (np.diff(curve) > 0).all()


def test_wilson_by_hand():
    """8 of 10: z = 1.96; the centre is (.8 + z²/20)/(1 + z²/10) = .716738."""
    low, high = wilson(8, 10)
    assert (low + high) / 2 == pytest.approx(0.716738, abs=1e-5)
    assert (low, high) == pytest.approx((0.490162, 0.943314), abs=1e-5)
    assert wilson(0, 5)[0] == pytest.approx(0.0, abs=DECIMALS)
    assert wilson(5, 5)[1] == pytest.approx(1.0, abs=DECIMALS)
    with pytest.raises(ValueError, match="successes = 6 must be between 0 and trials = 5"):
        wilson(6, 5)


def test_the_demo_covers_every_method():
    named = {spec.partition("@")[0] for spec in methods.compared()}
    assert {name.partition(":")[0] for name in named} == set(methods.names())
    assert {"caote:h2o", "caote:tova", "caote:snapkv", "fast_caote:h2o"} <= named
    assert all(isinstance(methods.takes_budget(spec), bool) for spec in methods.compared())


# --- the command ---------------------------------------------------------------------------------


def test_compare_prints_json(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "kvlab.fast.lab.sweep.compare.in_processes", lambda jobs, workers: in_this_process(jobs)
    )
    result = CliRunner().invoke(
        app,
        [
            *("compare", "--model", "jumps", "--task", SHORT["tasks"][0], "--problems", "1"),
            *("--methods", "full; tova", "--budget", "60", "--backend", "reference"),
            *("--json", "--report", str(tmp_path / "r.html"), "--workers", "1"),
        ],
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [row["spec"] for row in found["rows"]] == ["full", "tova"]
    assert found["budgets"] == {"60": 60}
    assert Path(tmp_path / "r.html").exists()


def test_methods_lists_options_and_divergences():
    listed = CliRunner().invoke(app, ["methods", "--json"])
    assert set(json.loads(listed.stdout)["methods"]) == set(methods.names())
    found = CliRunner().invoke(app, ["methods", "caote", "--divergences", "--json"])
    topics = [entry["topic"] for entry in json.loads(found.stdout)["caote"]]
    assert "order within a step" in topics
    assert "Divergence" not in CliRunner().invoke(app, ["methods", "caote"]).stdout


def test_comparing_in_this_process_gives_the_same():
    sweep = Sweep(("h2o",), ("70%",), problems=1, batch=1, **SHORT)
    here, elsewhere = (compare(sweep, workers) for workers in (0, 1))
    (one,), (other,) = (found.summary.points for found in (here, elsewhere))
    assert replace(one, seconds_per_token=None) == replace(other, seconds_per_token=None)
