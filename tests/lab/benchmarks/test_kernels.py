"""The benchmark of kernels runs from end to end; its times are not looked at."""

import json

import pytest
import torch
from tolerances import FLOAT32_SCORES

kernels = pytest.importorskip("kvlab.fast.lab.benchmarks.kernels")


def test_small_sizes_run_everywhere(invoke, tmp_path, monkeypatch):
    if not torch.cuda.is_available():
        monkeypatch.setenv("KVLAB_KERNELS", "interpret")
        monkeypatch.setattr(kernels, "ROWS", 4)  # the interpreter takes a minute for a prompt
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


def test_rivals_attend_to_the_same(monkeypatch):
    """A rival that computes something else says nothing."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        monkeypatch.setenv("KVLAB_KERNELS", "interpret")
    monkeypatch.setattr(kernels, "ROWS", 5)
    size = kernels.Size(1, 20, device, torch.float32)
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_is_asked_for(invoke):
    result = invoke(kernels.main)
    assert result.exit_code == 1
    assert "needs a GPU" in result.output
