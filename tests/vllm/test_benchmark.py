"""The benchmark runs and writes what it promises; no time is judged here."""

import json

import pytest
import typer
from typer.testing import CliRunner

from kvlab.fast.lab.benchmarks import vllm


@pytest.mark.slow
@pytest.mark.usefixtures("python")
def test_a_row_has_speeds_preemptions_and_requests_at_once(model, tmp_path, monkeypatch):
    """At a quarter of the memory two whole requests fit, and more of which two blocks stay."""
    monkeypatch.setattr(vllm, "SHARES", (0.25,))
    monkeypatch.setattr(vllm, "METHODS", ("tova",))
    app, out = typer.Typer(), tmp_path / "result.json"
    app.command()(vllm.main)
    sizes = ["--requests", "8", "--prompt", "64", "--written", "192", "--out", str(out)]
    done = CliRunner().invoke(app, ["--model", model[1], *sizes])
    assert done.exit_code == 0, done.output
    full, tova = json.loads(out.read_text())["rows"]
    assert (full["method"], tova["method"]) == (vllm.WITHOUT, "tova")
    assert full["preempted"] > 0 == tova["preempted"] and tova["at_once"] >= 4
    for row in (full, tova):
        assert row["tokens_per_second_of_cpu_time"] == pytest.approx(8 * 192 / row["cpu_seconds"])
