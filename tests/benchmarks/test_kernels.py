"""The benchmark of kernels runs from end to end; its times are not looked at."""

import json

import pytest
import torch
from typer.testing import CliRunner

kernels = pytest.importorskip("kvlab.fast.benchmarks.kernels")


@pytest.fixture
def command():
    import typer

    app = typer.Typer()
    app.command()(kernels.main)
    return app


def test_small_sizes_run_everywhere(command, tmp_path, monkeypatch):
    if not torch.cuda.is_available():
        monkeypatch.setenv("KVLAB_KERNELS", "interpret")
    path = tmp_path / "kernels.json"
    result = CliRunner().invoke(command, ["--small", "--out", str(path)])
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text())
    assert len({each["kernel"] for each in found["results"]}) == 18
    assert all(each["seconds"] > 0 for each in found["results"])
    assert found["versions"]["triton"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_is_asked_for(command):
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 1
    assert "needs a GPU" in result.output
