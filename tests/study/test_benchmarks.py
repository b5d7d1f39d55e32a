"""Tables of results say what their files say, whatever benchmark wrote them."""

import json

import pytest

from kvlab.fast.lab.reports import Code, Heading, Text
from kvlab.fast.lab.tables import Table
from study import benchmarks as report
from study.benchmarks import RESULTS, result_files


def cells(blocks):
    tables = [block for block in blocks if isinstance(block, Table)]
    return [cell for table in tables for row in table.rows for cell in row]


def test_every_committed_file_is_shown():
    found = list(report.blocks())
    files = list(RESULTS.glob("*.json"))
    assert len(files) > 1
    said = " ".join(block.text for block in found if isinstance(block, Text))
    for path in files:
        assert f"From {path.name}." in said
    headings = [block.text for block in found if isinstance(block, Heading) and block.level == 2]
    assert len(headings) == len(set(headings)) == len(files), "each has a heading of its own"


def test_speeds_are_those_of_the_file():
    path = RESULTS / "decode-cpu.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    shown = cells(report.result_blocks(path.name, result))
    for outcomes in result["parts"].values():
        for each in outcomes:
            assert each["name"] in shown and f"{each['median']:,.0f}" in shown
    commands = [b.text for b in report.result_blocks(path.name, result) if isinstance(b, Code)]
    assert commands[0].startswith("python -m kvlab.fast.lab.benchmarks.decode ")


def kernels(**change):
    result = {"kernel": "tables, 4 bit", "batch": 8, "entries": 16384, "seconds": 2e-4}
    result |= {"share_of_copy": 0.8, "rival": "decode", "gain": 3.5, "share_of_gain": 0.875}
    return {
        "command": "python -m kvlab.fast.lab.benchmarks.kernels",
        "machine": {"gpu": "H200", "cores": 16},
        "versions": {"torch": "2.11"},
        "shape": {"dtype": "torch.bfloat16", "kv_heads": 8, "group": 4, "head_dim": 128},
        "copy_bytes_per_second": 4.1e12,
        "results": [result | change],
    }


def test_kernels_are_set_beside_copying_and_their_rival():
    row = cells(report.result_blocks("kernels-gpu.json", kernels()))
    assert row == ["tables, 4 bit", "8", "16,384", "200.0", "80 %", "3.50 × decode", "88 %"]
    alone = kernels(rival="", gain=None, share_of_gain=None, share_of_copy=None)
    assert cells(report.result_blocks("kernels-gpu.json", alone))[-3:] == ["–", "–", "–"]


def test_what_memory_was_not_enough_for_is_named():
    missing = {"batch": 32, "entries": 65536, "all_after": "keep sets"}
    result = kernels(gain=None, share_of_gain=None) | {"left_out": [missing]}
    found = list(report.result_blocks("kernels-gpu.json", result))
    assert cells(found)[-2:] == ["–", "–"]
    text = " ".join(block.text for block in found if isinstance(block, Text))
    assert "Batch 32, 65,536 entries" in text and "after keep sets" in text


def test_results_of_gpus_come_first_and_unknown_ones_are_refused(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(kernels() | {"machine": {"gpu": None}}))
    (tmp_path / "b.json").write_text(json.dumps(kernels()))
    assert [path.name for path in result_files(tmp_path)] == ["b.json", "a.json"]
    unknown = {"machine": {}, "versions": {}, "command": "", "paint": {"median_ms": 12.5}}
    (tmp_path / "c.json").write_text(json.dumps(unknown))
    with pytest.raises(
        ValueError, match=r"must hold one of parts, .*; it holds machine, versions, command"
    ):
        list(report.blocks(tmp_path))


@pytest.mark.parametrize(
    ("content", "problem"),
    [("{", "is not JSON"), ("[]", "must hold a JSON object"), ('{"machine": {}}', "'versions'")],
)
def test_a_broken_file_is_named(tmp_path, content, problem):
    (tmp_path / "broken.json").write_text(content)
    with pytest.raises(ValueError, match=f"broken.json .*{problem}"):
        list(report.blocks(tmp_path))
