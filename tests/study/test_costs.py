"""Tables of costs say what the planner counts."""

import pytest

from kvlab.reference import methods
from kvlab.reference.simulator.cost import Plan
from kvlab.reference.simulator.sizes import HARDWARE, SHAPES
from study.costs import (
    entry_bytes,
    memory_held,
    remembered,
    remembered_bytes,
    work_per_token,
)

SHAPE = SHAPES["llama-3.1-8b"]
"""32 layers of 8 KV heads, 4 query heads each, 128 channels."""


def plan(spec, budget=None, generated=40):
    return Plan(SHAPE, HARDWARE["h200"], methods.get(spec, budget), 60, generated)


def cells(table):
    return {row[0]: row[1:] for row in table.rows}


def test_work_of_h2o_by_hand():
    """65 entries but for the first 4 tokens: probabilities of 4 query heads are read, a sum is read
    and written, 65·4·(4 + 2) bytes = 1.5 KiB; somebody has to go from the fifth token on."""
    found = cells(work_per_token(plan("h2o", 64, generated=400)))
    assert found["update what is remembered"][:2] == ("every step", "1.5")
    assert found["find who goes"][0] == "396 of 400 steps"
    assert "move the survivors together" not in found


def test_a_lagged_method_decides_now_and_then():
    found = cells(work_per_token(plan("lazy_eviction@window=10", 64)))
    assert found["rate the entries"][0] == "4 of 40 steps"
    assert found["update what is remembered"][0] == "every step"


def test_memory_by_hand():
    """100 entries of 32·8 heads at 512 bytes: 12.5 MiB; H2O's 64 at most, and 8 bytes each."""
    found = cells(memory_held(plan("h2o", 64), plan("full")))
    assert found["entries per KV head during a step, at most"] == ("65", "100")
    assert found["keys and values after a step, at most"] == ("8 MiB", "12 MiB")
    assert found["positions and scores after a step, at most"] == ("0.1 MiB", "0.1 MiB")
    assert found["remembered queries"] == ("none", "none")


@pytest.mark.parametrize(
    ("spec", "rows"), [("snapkv@window=16", 16), ("ahakv", 32), ("rkv", 8), ("h2o", 0)]
)
def test_remembered_queries_are_those_of_the_window(spec, rows):
    policy = methods.get(spec, 64)
    shapes = remembered(policy, SHAPE, 60)
    assert shapes.get("queries", (1, 4, 0, 128)) == (1, 4, rows, 128)
    assert remembered_bytes(policy, SHAPE, 60) == 2 * 8 * 4 * rows * 128


def test_numbers_beside_an_entry_have_four_bytes():
    assert entry_bytes(methods.get("full")) == 4
    assert entry_bytes(methods.get("lazy_eviction", 64)) == 16
