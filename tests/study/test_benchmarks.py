"""Tables of results say what their files say, whatever benchmark wrote them."""

import json

from kvlab.fast.lab.reports import Code, Text
from kvlab.fast.lab.tables import Table
from study import variants
from study.benchmarks import result_blocks, results, served, share, throughput
from study.stored import stored_file
from support.site import ROOT


def cells(blocks):
    tables = [block for block in blocks if isinstance(block, Table)]
    return [cell for table in tables for row in table.rows for cell in row]


def test_a_result_of_changed_code_says_so():
    shown = {name: [*result_blocks(name, each)][-1].text for name, each in results().items()}
    changed = [name for name, text in shown.items() if "not committed" in text]
    assert changed == ["decode-cpu.json"] and "bcd7552, kvlab" in shown["decode-cpu.json"]


def test_every_row_of_speed_has_the_bytes_that_must_move():
    """All but the rows of engines that choose the number format of their weights."""
    files = *results().values(), stored_file("vllm_in_blocks")
    rows = [row for file in files for part in file["parts"].values() for row in part]
    without = {row["name"].partition(" ")[0] for row in rows if row["must_bytes"] is None}
    assert without == {"openvino", "llama.cpp"}
    assert all(row["must_bytes"] > 0 for row in rows if row["must_bytes"] is not None)


def test_speeds_are_those_of_the_file_and_shares_are_taken_within_a_round():
    ours, full = ({"tokens_per_second": speeds} for speeds in ([50, 100, 300], [100, 200, 400]))
    assert share(ours, full) == 0.5
    result = results()["decode-cpu.json"]
    blocks = list(result_blocks("decode-cpu.json", result))
    for outcomes in result["parts"].values():
        for each in outcomes:
            assert {each["name"], f"{each['quartiles'][1]:,.0f}"} <= set(cells(blocks))
    (command,) = (block.text for block in blocks if isinstance(block, Code))
    assert command.startswith("python -m kvlab.fast.lab.benchmarks.decode ")


def kernels(*left_out, **change):
    result = {"kernel": "tables, 4 bit", "batch": 8, "entries": 16384, "seconds": 2e-4}
    result |= {"share_of_copy": 0.8, "rival": "decode", "must_bytes": 2**21, "by_bytes": True}
    rival = result | {"kernel": "decode", "rival": "", "seconds": 7e-4, "must_bytes": 2**23}
    about = {
        "shape": {"dtype": "torch.bfloat16", "kv_heads": 8, "group": 4, "head_dim": 128},
        "copy_bytes_per_second": 4.1e12,
        "left_out": left_out,
    }
    return {
        "benchmark": "kernels",
        "command": "python -m kvlab.fast.lab.benchmarks.kernels",
        "machine": {"gpu": "H200", "cores": 16},
        "versions": {"torch": "2.11"},
        "parameters": {},
        "about": about,
        "parts": {"kernels": [result | change, rival]},
    }


def test_kernels_are_set_beside_copying_and_their_rival():
    ours = ["tables, 4 bit", "8", "16,384", "200.0", "2.0", "80 %", "3.50 × decode", "88 %"]
    assert cells(result_blocks("", kernels()))[:8] == ours  # a quarter of the bytes allows 4
    missing = {"batch": 32, "entries": 65536, "all_after": "keep sets"}
    alone = kernels(missing, by_bytes=False, share_of_copy=None)
    found = list(result_blocks("kernels-gpu.json", alone))
    assert cells(found)[5:8] == ["–", "3.50 × decode", "–"]
    text = " ".join(block.text for block in found if isinstance(block, Text))
    assert "Batch 32, 65,536 entries" in text and "after keep sets" in text
    assert "Each kernel runs alone." in text


def test_what_vllm_serves_is_set_beside_the_full_cache_and_drawn():
    def row(method, share, speed, **more):
        found = {"cpu_seconds": [8 * 256 / speed], "seconds": [2 * 8 * 256 / speed]}
        found |= {"at_once": 6, "preempted": 0, "blocks": {}, "accepted": None}
        found |= {"must_bytes": 3 * 2**20}
        return {"method": method, "share": share, **found, **more}

    blocks = {"blocks": {"evicted": 80, "freed": 79}, "accepted": 0.5}
    pools = [row("full, without the plug-in", share, 10 * share) for share in (1.0, 0.25)]
    pools += [row("tova", share, 9.0, **blocks) for share in (1.0, 0.25)]
    pools += [row("full, the plug-in not configured", 1.0, 10.0)]
    result = {"parts": {"1024": pools}, "parameters": {"requests": 8, "written": 256, "rounds": 3}}
    found = cells(served(result))
    quarter = ["25 %", "tova", "9.0", "4.5", "360 %", "3", "6", "0", "80", "79", "50 %"]
    assert found[33:44] == quarter and found[8:11] == ["–", "–", "–"]
    drawn = throughput(result).svg
    assert all(text in drawn for text in ("prompts of 1,024 tokens", ">tova<", ">25 %<"))
    assert "not configured" not in drawn  # it was measured with all of the memory alone


def test_kernels_of_another_checkout_are_timed_in_turn(tmp_path):
    out = tmp_path / "variants.json"
    variants.main(ROOT, only="sums", small=True, repeats=2, out=out)
    (row,) = json.loads(out.read_text())["parts"]["variants"]
    assert row["kernel"] == "decode attention, sums" and min(row["ratio"]) > 0
