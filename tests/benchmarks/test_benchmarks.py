"""The benchmarks run and write what they promise; no time is judged here."""

import json

import pytest

from kvlab.fast.benchmarks import decode, memory
from kvlab.fast.benchmarks.workload import tiny_llama


def test_decoding_speed_is_written_with_machine_and_versions(tmp_path):
    out = tmp_path / "decode.json"
    decode.main(out=out, repeats=1, shorter=32)
    found = json.loads(out.read_text())
    assert found["schema"] == decode.SCHEMA
    assert found["machine"]["cores"] >= 1
    assert found["versions"]["torch"]
    assert found["kvpress"].startswith("not measured")
    names = {outcome["name"] for outcome in found["parts"]["constant"]}
    assert {"transformers full cache", "kvlab h2o", "kvlab caote:h2o"} <= names
    assert all(o["median"] > 0 for part in found["parts"].values() for o in part)


def test_memory_is_read_along_the_way(tmp_path):
    out = tmp_path / "memory.json"
    memory.main(method="h2o", tokens=300, every=50, out=out)
    found = json.loads(out.read_text())
    assert list(map(int, found["resident_bytes"])) == [50, 100, 150, 200, 250, 300]
    assert found["kept"] == found["entries"] == 256
    with pytest.raises(ValueError, match="no reading after 400"):
        memory.growth({300: 1}, after=400)


def test_all_contenders_share_one_model():
    first, second = tiny_llama(), tiny_llama()
    assert first.lm_head.weight.equal(second.lm_head.weight)
    heads = {c.name: c.run for c in decode.contenders(first, "constant", "cpu", None, 1)}
    full, compressed = heads["kvlab full"], heads["kvlab h2o"]
    assert full.prompt + full.tokens / 2 == 256 < compressed.prompt
