"""The benchmarks run and write what they promise; no time is judged here."""

import json
import sys
from pathlib import Path

import pytest
from typer import BadParameter

from kvlab.fast.lab.benchmarks import contenders, decode, memory
from kvlab.fast.lab.benchmarks.contenders import Setting, kvlab, stock
from kvlab.fast.lab.benchmarks.workload import Run, tiny_llama
from kvlab.fast.lab.reports import Text
from kvlab.reference.models import reasoner_directory
from study.benchmarks import decoding

ENTRY = 4 * 8 * 2 * 32 * 4
"""Bytes of one cached token: layers, heads, key and value, channels, float32."""


def test_decoding_speed_is_written_with_machine_and_versions(tmp_path):
    out, absent = tmp_path / "decode.json", tmp_path / "python"
    decode.main(out=out, kvpress=absent, repeats=2, whole_repeats=1, tokens=40, stretch=4)
    found = json.loads(out.read_text())
    assert found["schema"] == decode.SCHEMA
    assert found["machine"]["cores"] >= 1
    assert found["versions"]["torch"]
    assert found["kvpress"] == {"measured": False, "reason": f"{absent} does not exist"}
    constant = {outcome["name"]: outcome for outcome in found["parts"]["constant"]}
    assert constant["transformers full cache"]["share_of_full"] == 1
    assert {constant[f"kvlab {name}"]["peak"]["entries"] for name in decode.PER_STEP} == {256}
    for outcome in constant.values():
        assert len(outcome["tokens_per_second"]) == 2
        assert 0 < outcome["lowest"] <= outcome["median"] <= outcome["highest"]
        assert outcome["peak"]["bytes"] >= ENTRY * outcome["peak"]["entries"]
    whole = {outcome["name"]: outcome for outcome in found["parts"]["whole"]}
    assert whole["transformers full cache"]["peak"] == {"entries": 103, "bytes": 103 * ENTRY}


def test_all_keep_as_many_entries_as_they_should():
    setting, part = Setting(tiny_llama(), 256), decode.constant(stretch=40, repeats=1)
    several = (stock(setting), *(kvlab(setting, name) for name in ("full", decode.LAGGED)))
    kept = [each.measured(part.run(each), True).entries for each in several]
    assert kept == [256 + 20 - 1, 256 + 20 - 1, 256 + 31]


def test_a_language_model_is_measured_with_a_quarter_of_the_entries(tmp_path):
    out = tmp_path / "real.json"
    model = str(reasoner_directory())
    decode.main(out=out, whole_repeats=1, tokens=3, model=model, prompt=160, cpu_time=True)
    found = json.loads(out.read_text())
    parameters = {"entries": 40, "cpu_time": True, "model": model, "prompt": 160, "tokens": 3}
    assert found["parameters"] == {**parameters, "whole_repeats": 1}
    real = {outcome["name"]: outcome for outcome in found["parts"]["real"]}
    assert real["transformers full cache of 40"]["peak"]["entries"] == 40 + 1
    assert real["transformers full cache"]["peak"]["entries"] == 160 + 1
    for outcome in real.values():
        assert len(outcome["first_seconds"]) == 1 and outcome["first_seconds"][0] > 0
    shown = " ".join(block.text for block in decoding(found) if isinstance(block, Text))
    assert (
        "Seconds are CPU time" in shown
        and "reads 160 tokens, at once unless a row says otherwise" in shown
    )


def test_shares_are_taken_within_a_round():
    assert decode.share_of([50, 100, 300], full=[100, 200, 400]) == 0.5


def test_a_worker_is_asked_line_by_line(monkeypatch, tmp_path):
    script = tmp_path / "kvpress_contender.py"
    script.write_text(
        "import json, sys\n"
        "print(json.dumps({'kvpress': '0'}), flush=True)\n"
        "asked = json.loads(input())\n"
        "tokens = asked['run']['tokens']\n"
        "print(json.dumps({'first': asked['entries'], 'rest': 2, 'tokens': tokens}), flush=True)\n"
    )
    monkeypatch.setattr(contenders, "__file__", str(tmp_path / "contenders.py"))
    worker = contenders.KvpressWorker(Path(sys.executable), "cpu", "1", "")
    press = contenders.kvpress(worker, Setting(None, entries=5), "tova", 1)
    assert worker.versions == {"kvpress": "0"}
    timing = press.measured(Run(3, 7), False)
    assert timing.speed(with_prompt=True) == 7 / (5 + 2)
    assert timing.speed(with_prompt=False) == (7 - 1) / 2
    worker.process.wait()
    with pytest.raises(RuntimeError, match="kvpress ended with code 0"):
        worker._receive()
    worker.process.communicate()


def test_memory_is_read_along_the_way(tmp_path, monkeypatch):
    out = tmp_path / "memory.json"
    memory.main(method="h2o", tokens=300, every=50, out=out)
    found = json.loads(out.read_text())
    assert list(map(int, found["resident_bytes"])) == [50, 100, 150, 200, 250, 300]
    assert found["kept"] == found["entries"] == 256
    read = iter([9, 7, 5, 8, 6, 7])
    monkeypatch.setattr(memory, "resident_bytes", lambda: next(read))
    memory.main(method="h2o", tokens=12, every=2, out=out)
    assert json.loads(out.read_text())["growth_bytes"] == 8 - 5
    with pytest.raises(BadParameter, match="no reading after 3 tokens"):
        memory.main(method="h2o", tokens=7, every=9, out=out)
