"""Kernels run in Triton's interpreter, or on a GPU where there is one."""

import interpreter
import pytest
from kernel_inputs import DEVICE

from kvlab.fast.kernels.choice import VARIABLE

if DEVICE == "cpu":
    interpreter.hurry()


@pytest.fixture(autouse=True)
def use_triton(monkeypatch):
    monkeypatch.setenv(VARIABLE, "triton" if DEVICE == "cuda" else "interpret")
