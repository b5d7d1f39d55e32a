"""Kernels run in Triton's interpreter, or on a GPU where there is one."""

from collections import Counter
from pathlib import Path

import pytest

from kvlab.fast.kernels.choice import VARIABLE
from support import interpreter
from support.kernel_inputs import DEVICE

if DEVICE == "cpu":
    interpreter.hurry()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Let one in three cases of each test be quick: the interpreter takes long."""
    seen = Counter()
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.get_closest_marker("slow"):
            if seen[item.function] % 3:
                item.add_marker(pytest.mark.slow)
            seen[item.function] += 1


@pytest.fixture(autouse=True)
def use_triton(monkeypatch):
    monkeypatch.setenv(VARIABLE, "triton" if DEVICE == "cuda" else "interpret")
