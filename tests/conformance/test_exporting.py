"""Targets as problems of gpu-mode's runner and as definitions of flashinfer-bench."""

import importlib
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from kvlab.reference.conformance.exporting import files_of
from kvlab.reference.conformance.planned import sized_cases
from support.kernels import TABLE
from support.running import python
from support.sampling import sampled

TEXTS = TABLE["texts"]
TARGETS = (
    *("attend", "h2o.observe", "caote:h2o.score", "keep_set", "quantize", "encode"),
    *("attend_pages", "compact_pages", "attend_requests", "write_pages"),
)


def write(files, folder):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_gpu_mode_passes_what_is_right_and_nothing_else(target, tmp_path):
    yaml = pytest.importorskip("yaml")
    files = files_of(target, "gpu-mode")
    write(files, tmp_path)
    task = yaml.safe_load(files["task.yml"])
    named = {each["name"] for each in task["files"]}
    assert {*named, "task.yml"} == {*files, "utils.py", "eval.py"}
    tests = [*task["tests"][:24:12], *task["tests"][24::16]]
    lines = "".join("; ".join(f"{x}: {y}" for x, y in each.items()) + "\n" for each in tests)
    (tmp_path / "right.py").write_text(TEXTS["attend" if target == "attend" else "reference"])
    (tmp_path / "wrong.py").write_text(TEXTS["wrong"])
    done = python("-c", TEXTS["runner"], cwd=tmp_path, input=lines)
    assert done.stdout.split() == ["True", "False"] * len(tests), done.stderr


@pytest.mark.parametrize("target", sampled(TARGETS, ("encode",)))
def test_definitions_compute_what_the_reference_does(target, tmp_path):
    write(files_of(target, "flashinfer-bench"), tmp_path)
    cases = {case.name: case for case in sized_cases("kernel", 0, target.__eq__)}
    for file in tmp_path.glob("workloads/kvlab/*.jsonl"):
        told = json.loads((tmp_path / "definitions/kvlab" / f"{file.stem}.json").read_text())
        names: dict = {}
        exec(told["reference"], names)
        for workload in (json.loads(line)["workload"] for line in file.read_text().splitlines()):
            given, case = workload["inputs"], cases.pop(workload["uuid"])
            paths = {tmp_path / each["path"] for each in given.values() if "path" in each}
            scalars = {x: each["value"] for x, each in given.items() if "value" in each}
            found = names["run"](**load_file(*paths), **scalars)
            for name, x in zip(told["outputs"], found, strict=True):
                each = case.expected[name.removesuffix("_after")]
                value = each.value if each.where is None else np.where(each.where, each.value, 0)
                assert torch.equal(x, torch.tensor(value).to(x.dtype)), case.name
    assert all(name.startswith("attend_requests/nothing_visible") for name in cases)  # lse is −∞
    data = pytest.importorskip("flashinfer_bench.data", reason="flashinfer-bench is not installed")
    loads = importlib.import_module("flashinfer_bench.bench.utils").load_safetensors
    dataset = data.TraceSet.from_path(tmp_path)
    for name, each in dataset.definitions.items():
        for trace in dataset.workloads[name]:
            assert loads(each, trace.workload, tmp_path)
