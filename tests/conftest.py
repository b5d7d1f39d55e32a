"""Settings that have to stand before any test is imported."""

import gc
import importlib
import os

import hypothesis
import pytest
import torch
import transformers.utils
from jaxtyping import config

from support import typecheck  # noqa: F401  (before kvlab is imported)

# What is imported stays to the end: the garbage collector would walk over it in vain. And what
# modules do while they are imported is no test.
gc.disable()
config.update("jaxtyping_disable", True)

# Else transformers imports scikit-learn, where lm-eval brings it: for assisted generation.
setattr(transformers.utils, "is_sklearn_available", lambda: False)  # noqa: B010

NO_CLOCK = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("thorough", **NO_CLOCK)
hypothesis.settings.register_profile("quick", **NO_CLOCK, max_examples=25)

# Triton reads this when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


TURNS = 3


def pytest_addoption(parser):
    said = f"of the slow tests run every {TURNS}rd from the N-th on"
    parser.addoption("--turn", type=int, metavar="N", help=said)


def pytest_collection_modifyitems(config, items):
    """Leave the slow tests of other turns out."""
    if (turn := config.getoption("turn")) is not None:
        slow = [each for each in items if each.get_closest_marker("slow")]
        later = {*slow} - {*slow[turn % TURNS :: TURNS]}
        items[:] = [item for item in items if item not in later]
        config.hook.pytest_deselected(items=[*later])


def pytest_configure(config):
    """Let hypothesis try all its examples where the slow tests run, too."""
    thorough = config.option.markexpr in ("slow", "slow or not slow")
    hypothesis.settings.load_profile("thorough" if thorough else "quick")


def pytest_collection_finish():
    """Take what is imported out of the garbage collector's walks."""
    gc.freeze()
    gc.enable()


MUCH = ("browser", "conformance", "evaluate", "fast", "playground", "simulator", "study")
"""Folders of tests that compute much: there shapes are checked where a test asks for it."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    config.update("jaxtyping_disable", item.path.parent.name in MUCH)


@pytest.fixture
def here(monkeypatch):
    """Let `kvlab compare` work in this process."""
    compare = importlib.import_module("kvlab.fast.lab.sweep.compare")
    monkeypatch.setattr(
        compare, "in_processes", lambda jobs, workers: compare.in_this_process(jobs)
    )
