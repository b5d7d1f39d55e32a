"""The benchmarks that need a GPU run small ones anywhere; their times are not looked at."""

import json

import pytest
import torch
import typer
from tolerances import FLOAT32_SCORES
from typer.testing import CliRunner

from kvlab.fast.lab.benchmarks import end_to_end, kernels
from kvlab.fast.lab.reports import Heading
from kvlab.fast.lab.tables import Table
from study.benchmarks import result_blocks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def invoke(main, *arguments):
    """Run a benchmark as a command."""
    app = typer.Typer()
    app.command()(main)
    return CliRunner().invoke(app, arguments)


@pytest.mark.skipif(DEVICE == "cuda", reason="there is a GPU")
@pytest.mark.parametrize("benchmark", [end_to_end, kernels])
def test_a_gpu_is_asked_for(benchmark):
    result = invoke(benchmark.main)
    assert result.exit_code == 1
    assert "needs a GPU" in result.output


# --- whole generations ----------------------------------------------------------------------------


def test_a_tiny_model_runs_everywhere_and_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(end_to_end, "WARM_UP", 16)  # no kernel is compiled for a tiny model
    path = tmp_path / "result.json"
    done = invoke(end_to_end.main, "--small", "--out", str(path))
    assert done.exit_code == 0, done.output
    found = json.loads(path.read_text())
    methods = [each["method"] for each in found["latency"]]
    assert methods == ["transformers full cache", "kvlab full", "tova", "lazy_eviction"]
    assert found["latency"][0]["over_full"] == 0
    full, ours, desirekv = found["capacity"]
    assert full["batch"] == ours["batch"] == desirekv["batch"] == 2
    assert [full["method"], ours["method"]] == methods[:2]
    whole = 2 * 4 * 8 * 32 * 2 * 4 * (end_to_end.PROMPT + 24 - 1)
    assert 0 < desirekv["cache_bytes"] < whole == full["cache_bytes"] <= ours["cache_bytes"]
    heading, *rest = result_blocks(path.name, found)
    assert isinstance(heading, Heading) and heading.text.startswith("A whole model")
    tables = [block for block in rest if isinstance(block, Table)]
    shown = {cell for table in tables for row in table.rows for cell in row}
    assert {"lazy_eviction", "desirekv@interval=16,selector=4,group=32"} <= shown


@pytest.mark.parametrize("limit", [1, 2, 7, 13, 64, 100, 300])
def test_the_largest_batch_is_found_to_an_eighth(limit):
    most, fits, too_many, batch, tried = 256, 0, 257, 1, 0
    while batch < too_many:
        fits, too_many = (batch, too_many) if batch <= limit else (fits, batch)
        batch, tried = end_to_end.next_batch(fits, too_many, most), tried + 1
    assert fits <= min(limit, most)
    assert min(limit, most) - fits <= max(1, fits // 8)
    assert tried < 16


# --- kernels --------------------------------------------------------------------------------------


@pytest.fixture
def interpreted(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("KVLAB_KERNELS", "interpret")
    monkeypatch.setattr(kernels, "ROWS", 5)  # the interpreter takes a minute for a prompt


def test_small_sizes_run_everywhere(interpreted, tmp_path):
    path = tmp_path / "kernels.json"
    result = invoke(kernels.main, "--small", "--out", str(path))
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text())
    names = {each["kernel"] for each in found["results"]}
    assert len(names) == 29
    assert {each["rival"] for each in found["results"]} <= names | {""}
    assert found["left_out"] == []
    assert all(each["seconds"] > 0 for each in found["results"])
    assert found["versions"]["triton"]


def test_gains_are_compared_with_what_bytes_allow():
    size = {"batch": 1, "entries": 8}
    slow = {**size, "kernel": "wide", "rival": "", "bytes": 400, "seconds": 4.0}
    fast = {**size, "kernel": "narrow", "rival": "wide", "bytes": 100, "seconds": 2.0}
    unbounded = {**size, "kernel": "other", "rival": "wide", "bytes": 0, "seconds": 1.0}
    kernels.add_gains([fast, slow, unbounded])
    assert fast["gain"] == 2.0
    assert fast["share_of_gain"] == 0.5  # four times fewer bytes would allow a gain of 4
    assert (unbounded["gain"], unbounded["share_of_gain"]) == (4.0, None)
    assert "gain" not in slow


def test_rivals_attend_to_the_same(interpreted):
    """A rival that computes something else says nothing."""
    size = kernels.Size(1, 20, DEVICE, torch.float32)
    found = {
        case.kernel: case.run
        for cases in (kernels.decode_cases, kernels.prefill_cases)
        for case in cases(size)
    }
    rival = found["SDPA of PyTorch, 5 rows"]()
    ours, _ = found["attention of 5 rows with log-sum-exps"]()
    torch.testing.assert_close(rival.view_as(ours), ours, atol=FLOAT32_SCORES, rtol=FLOAT32_SCORES)
    ours, _ = found["decode attention, no scores"]()
    rival = found["SDPA of PyTorch"]().view_as(ours)
    torch.testing.assert_close(rival, ours, atol=FLOAT32_SCORES, rtol=FLOAT32_SCORES)


def test_what_memory_is_not_enough_for_is_left_out():
    def run():
        raise torch.OutOfMemoryError("CUDA out of memory")

    fits = kernels.Case("fits", 1, 8, lambda: None, 100, rival="large")
    large = kernels.Case("large", 1, 8, run, 400)
    results, fitted = kernels.timed(iter([fits, large]), "cpu", 1, 1e9)
    assert ([each["kernel"] for each in results], fitted) == (["fits"], False)
    kernels.add_gains(results)
    assert results[0]["gain"] is None
    assert kernels.timed(iter([fits]), "cpu", 1, 1e9)[1]
