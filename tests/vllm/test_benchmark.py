"""The benchmark runs and writes what it promises; no time is judged here."""

import json
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from kvlab.fast.lab.benchmarks import vllm
from kvlab.fast.lab.benchmarks.workload import Run


@pytest.mark.slow
@pytest.mark.usefixtures("python")
def test_a_row_has_speeds_preemptions_blocks_and_accepted_tokens(model, tmp_path):
    """At a quarter of the memory two whole requests fit, and more of which two blocks stay."""
    app, out = typer.Typer(), tmp_path / "result.json"
    app.command()(vllm.main)
    sizes = ["--requests", "8", "--prompts", "64", "--written", "192", "--rounds", "2"]
    sizes += ["--shares", "0.25", "--methods", "tova"]
    done = CliRunner().invoke(app, ["--model", model[1], *sizes, "--out", str(out)])
    assert done.exit_code == 0, repr(done.exception)
    full, tova = json.loads(out.read_text())["parts"]["64"]
    assert (full["method"], tova["method"]) == (vllm.WITHOUT, "tova")
    assert full["preempted"] > 0 == tova["preempted"] and tova["at_once"] >= 4
    assert full["blocks"] == {} and tova["blocks"]["evicted"] == tova["blocks"]["freed"] == 8 * 6
    assert full["accepted"] is None and 0 < tova["accepted"] < 1
    assert all(x > 0 for row in (full, tova) for x in (*row["cpu_seconds"], row["must_bytes"]))


def test_accepted_is_the_share_that_the_full_cache_finds_likeliest(model):
    """What it writes itself is accepted whole; one other token makes a text fork."""
    served = vllm.Served(Path(model[1]), Run(12, 9, 2))
    ids = torch.tensor(served.prompts)
    texts = model[0].generate(ids, max_new_tokens=9, do_sample=False)[:, 12:].tolist()
    assert served.accepted(texts) == 1
    texts[0][8] = (texts[0][8] + 1) % 97
    assert served.accepted(texts) == pytest.approx(17 / 18)
