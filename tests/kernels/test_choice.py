"""Which implementation runs is said, not guessed."""

import pytest
import torch

from kvlab.fast.kernels.choice import KERNELS, VARIABLE, kernels_for, uses_triton
from support.kernel_inputs import DEVICE
from support.running import python
from support.tables import cases


def test_float64_takes_pytorch():
    assert uses_triton(torch.zeros(1, device=DEVICE))
    assert not uses_triton(torch.zeros(1, dtype=torch.float64, device=DEVICE))


@cases(__file__, "the_environment_chooses_and_by_default_the_device", "asked device chosen")
def test_the_environment_chooses_and_by_default_the_device(monkeypatch, asked, device, chosen):
    monkeypatch.setenv(VARIABLE, asked)
    if chosen in KERNELS:
        assert kernels_for(torch.device(device)) == chosen
    else:
        with pytest.raises(ValueError, match=chosen):
            kernels_for(torch.device(device))


WITHOUT_TRITON = """
import os, sys
sys.modules["triton"] = None
import torch
from kvlab.fast.kernels import caote, decode, keep, mixed_precision, move, prefill, quantise
best, places = torch.tensor([[[3.0, 1.0, 2.0]]]), torch.arange(3)[None, None]
print(keep.keep_slots(best, None, places, [2], True).tolist())
os.environ["KVLAB_KERNELS"] = "interpret"
keep.keep_slots(best, None, places, [2], True)
"""


@pytest.mark.slow
def test_without_triton_pytorch_computes_and_kernels_are_refused(monkeypatch):
    monkeypatch.delenv(VARIABLE)
    done = python("-c", WITHOUT_TRITON)
    assert done.stdout == "[[[0, 2]]]\n"
    assert "RuntimeError: Triton is not installed, which KVLAB_KERNELS = 'interpret'" in done.stderr
