"""`compress(fuse=True)`: the same decisions by compiled arithmetic."""

import shutil
import subprocess
import sys

import pytest

from kvlab.fast.fusion import fusable, fusing

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="torch.compile needs a C++ compiler on a CPU",
)

GENERATE = """
import torch
from kvlab.fast import compress
from kvlab.fast.lab.benchmarks.workload import prompt, tiny_llama
from torch._dynamo.utils import counters

model, ids, found = tiny_llama(), prompt(40), []
for fuse in (False, True):
    with compress(model, "{spec}", budget=24, fuse=fuse) as cache:
        written = model.generate(ids, past_key_values=cache, max_new_tokens=24, do_sample=False)
        found.append((written, *cache.positions()))
    compiled = counters["stats"]["unique_graphs"]
    assert (compiled > 0) == fuse, compiled
assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
"""


def test_functions_are_compiled_only_while_fusing(monkeypatch):
    calls = []
    monkeypatch.setattr("torch.compile", lambda f: lambda x: calls.append("compiled") or f(x))
    double = fusable(lambda x: 2 * x)
    assert double(2) == 4
    assert not calls
    with fusing(True):
        assert double(2) == 4
    with fusing(False):
        assert double(3) == 6
    assert calls == ["compiled"]
    assert double(1) == 2
    assert calls == ["compiled"]


@needs_compiler
@pytest.mark.parametrize("spec", ["caote:h2o", "fast_caote:tova"])
def test_fused_decisions_are_the_same(spec):
    """In a process of its own: the tests' checks of shapes cannot be compiled."""
    script = GENERATE.format(spec=spec)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
