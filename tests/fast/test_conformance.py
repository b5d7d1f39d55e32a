"""PyTorch and Triton pass the conformance kit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvlab.fast.lab import conformance
from kvlab.reference import methods
from kvlab.reference.conformance import Status, check, load, published
from kvlab.reference.methods import base_name

FILE = Path(conformance.__file__)
KERNELS = (
    *("attend", "attention", "received_attention", "keep_set", "compact", "quantize"),
    *("quantize_dequantize", "attend_coded", "eviction_error", "outlier_score"),
)
"""Building blocks that Triton kernels compute."""


def test_pytorch_passes():
    report = check(None, load(FILE), minimise=False)
    report.raise_for_failures()
    assert report.not_offered == ()
    untested = [g.target for g in report.groups if g.count(Status.NOT_TESTED)]
    expected = ["eviction_error", "full.whole_cache"]
    assert untested == expected, "the kernel knows one norm, and attention no learned sinks"


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("target", ["attend", "attention", "attend_coded"])
def test_pytorch_passes_in_half_precision(target, precision):
    check(target, load(FILE, precision=precision), minimise=False).raise_for_failures()


SCRIPT = """
import sys
from pathlib import Path
from kvlab.reference.conformance import check
from kvlab.reference.conformance import load
under_test = load(Path(sys.argv[1]))
for target in sys.argv[2].split(","):
    groups = sys.argv[3].split(",") if sys.argv[3] else None
    report = check(target, under_test, groups=groups, minimise=False)
    report.raise_for_failures()
    print(target, report.count("passed"))
prefix = "kvlab.fast.kernels.triton."
print("kernels", ",".join(name for name in sys.modules if name.startswith(prefix)))
"""


def interpreted(targets, groups=()):
    """Run targets on Triton's interpreter, in a process of its own: Triton reads it when loaded."""
    environment = {**os.environ, "KVLAB_KERNELS": "interpret", "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(FILE), ",".join(targets), ",".join(groups)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = dict(line.split(" ") for line in done.stdout.splitlines())
    kernels = {name.rpartition(".")[2] for name in said.pop("kernels").split(",")}
    assert set(said) == set(targets) and all(int(passed) > 0 for passed in said.values())
    return kernels


def test_triton_passes_on_its_building_blocks():
    kernels = interpreted(KERNELS)
    assert kernels >= {"decode", "caote", "prefill", "keep", "move", "quantise", "mixed_precision"}


def test_triton_passes_on_whole_streams():
    targets = ["h2o.run", "caote:tova.run", "lazy_eviction.run", "desirekv.run", "kivi.run"]
    interpreted(targets, ["gqa"])


@pytest.mark.slow
@pytest.mark.parametrize("method", methods.names())
def test_triton_passes_everything(method):
    targets = {c.target for c in published() if c.method and base_name(c.method) == method}
    interpreted(sorted(targets))
