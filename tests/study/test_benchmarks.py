"""Tables of results say what their files say, whatever benchmark wrote them."""

import json

from kvlab.fast.lab.reports import Code, Heading, Text
from kvlab.fast.lab.tables import Table
from study.benchmarks import result_blocks, results


def cells(blocks):
    tables = [block for block in blocks if isinstance(block, Table)]
    return [cell for table in tables for row in table.rows for cell in row]


def test_every_committed_file_has_a_heading_of_its_own():
    shown = {name: list(result_blocks(name, result)) for name, result in results().items()}
    headings = [found[0].text for found in shown.values() if isinstance(found[0], Heading)]
    assert len(set(headings)) == len(shown) > 1
    assert all(Text(f"From {name}.") in found for name, found in shown.items())


def test_a_result_of_changed_code_says_so():
    shown = {name: [*result_blocks(name, each)][-1].text for name, each in results().items()}
    changed = [name for name, text in shown.items() if "not committed" in text]
    assert changed == ["decode-cpu.json"] and "bcd7552, kvlab" in shown["decode-cpu.json"]


def test_a_heading_names_the_other_transformers_that_kvpress_ran_with():
    result = results()["decode-smollm2-cpu.json"]
    heading, *blocks = result_blocks("decode-smollm2-cpu.json", result)
    assert isinstance(heading, Heading)
    assert heading.text.endswith("transformers 5.17.0, rows of kvpress 5.2.0")
    machine = "Rows of kvpress: kvpress 0.5.5, transformers 5.2.0, torch 2.13.0+cpu."
    assert blocks[-1].text.endswith(machine)
    alike = results()["decode-cpu-transformers-5.2.json"]
    heading, *_ = result_blocks("decode-cpu-transformers-5.2.json", alike)
    assert isinstance(heading, Heading) and heading.text.endswith(", transformers 5.2.0")


def test_speeds_are_those_of_the_file():
    result = results()["decode-cpu.json"]
    blocks = list(result_blocks("decode-cpu.json", result))
    for outcomes in result["parts"].values():
        for each in outcomes:
            assert {each["name"], f"{each['median']:,.0f}"} <= set(cells(blocks))
    (command,) = (block.text for block in blocks if isinstance(block, Code))
    assert command.startswith("python -m kvlab.fast.lab.benchmarks.decode ")


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
    row = cells(result_blocks("kernels-gpu.json", kernels()))
    assert row == ["tables, 4 bit", "8", "16,384", "200.0", "80 %", "3.50 × decode", "88 %"]
    missing = {"batch": 32, "entries": 65536, "all_after": "keep sets"}
    alone = kernels(rival="", gain=None, share_of_gain=None, share_of_copy=None)
    found = list(result_blocks("kernels-gpu.json", alone | {"left_out": [missing]}))
    assert cells(found)[-3:] == ["–", "–", "–"]
    text = " ".join(block.text for block in found if isinstance(block, Text))
    assert "Batch 32, 65,536 entries" in text and "after keep sets" in text
    assert "Each kernel runs alone." in text


def test_results_of_gpus_come_first(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(kernels() | {"machine": {"gpu": None}}))
    (tmp_path / "b.json").write_text(json.dumps(kernels()))
    assert list(results(tmp_path)) == ["b.json", "a.json"]
