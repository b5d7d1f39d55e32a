"""A kernel that reads or writes beside its arrays fails, in every test of kernels."""

import importlib.util
from pathlib import Path

import pytest
import torch

from kvlab.fast.kernels import mixed_precision, prefill
from kvlab.fast.kernels.vector_tables import VectorTable
from support.kernel_inputs import DEVICE, drawn, vectors
from support.planted import changed
from support.tables import cases

pytestmark = pytest.mark.skipif(DEVICE == "cuda", reason="needs Triton's interpreter")


def tables(module, n=37):
    queries, values = drawn((1, 1, 2, 1, 32)), drawn((1, 1, n, 32))
    stored = [VectorTable(torch.arange(n).expand(1, 1, n), values)]
    module.attend_to_tables(queries, stored, stored, n)


def received(module, n=37):
    queries, keys, _ = vectors(1, 1, 2, 5, n)
    places = torch.arange(n, dtype=torch.int32).expand(1, 1, n)
    module.received_attention(queries, keys, places[:, 0, -5:], places)


RUN = {"mixed_precision": (mixed_precision, tables), "prefill": (prefill, received)}


@cases(__file__, "one_number_beside_an_array_is_an_error", "kernel right wrong")
def test_one_number_beside_an_array_is_an_error(kernel, right, wrong, tmp_path):
    real, run = RUN[kernel]
    run(real)
    file = tmp_path / "changed.py"
    file.write_text(changed(Path(real.__file__), [(right, wrong)]))
    spec = importlib.util.spec_from_file_location("changed", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(Exception, match="beside all arrays"):
        run(module)
