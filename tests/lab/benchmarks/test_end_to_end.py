"""The benchmark of whole generations runs from end to end; its times are not looked at."""

import pytest
import torch

from kvlab.fast.lab.benchmarks import end_to_end
from kvlab.fast.lab.reports import Heading
from kvlab.fast.lab.tables import Table
from study.benchmarks import blocks


def test_a_tiny_model_runs_everywhere(whole_generations):
    _, found = whole_generations
    methods = [each["method"] for each in found["latency"]]
    assert methods == [end_to_end.FULL, end_to_end.OURS, "tova", "lazy_eviction"]
    assert found["latency"][0]["over_full"] == 0
    full, ours, desirekv = found["capacity"]
    assert full["batch"] == ours["batch"] == desirekv["batch"] == 2
    assert (full["method"], ours["method"]) == (end_to_end.FULL, end_to_end.OURS)
    whole = 2 * 4 * 8 * 32 * 2 * 4 * (end_to_end.PROMPT + 48 - 1)
    assert 0 < desirekv["cache_bytes"] < whole <= ours["cache_bytes"]


@pytest.mark.parametrize("limit", [1, 2, 7, 13, 64, 100, 300])
def test_the_largest_batch_is_found_to_an_eighth(limit):
    most, fits, too_many, batch, tried = 256, 0, 257, 1, 0
    while batch < too_many:
        fits, too_many = (batch, too_many) if batch <= limit else (fits, batch)
        batch, tried = end_to_end.next_batch(fits, too_many, most), tried + 1
    assert fits <= min(limit, most)
    assert min(limit, most) - fits <= max(1, fits // 8)
    assert tried < 16


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_is_asked_for(invoke):
    result = invoke(end_to_end.main)
    assert result.exit_code == 1
    assert "needs a GPU" in result.output


def test_a_result_of_whole_generations_is_shown(whole_generations):
    path, _ = whole_generations
    heading, *found = blocks(path.parent)
    assert isinstance(heading, Heading) and heading.text.startswith("A whole model")
    shown = {
        cell for block in found if isinstance(block, Table) for row in block.rows for cell in row
    }
    assert {"lazy_eviction", "desirekv@interval=16,selector=4,group=32"} <= shown
