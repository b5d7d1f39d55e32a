"""Kernels run in Triton's interpreter, or on a GPU where there is one."""

import pytest

from kvlab.fast.kernels.choice import VARIABLE
from support import interpreter
from support.kernel_inputs import DEVICE

if DEVICE == "cpu":
    interpreter.hurry()


@pytest.fixture(autouse=True)
def use_triton(monkeypatch):
    monkeypatch.setenv(VARIABLE, "triton" if DEVICE == "cuda" else "interpret")
