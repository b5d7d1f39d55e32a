"""Timelines drawn at random are timelines: of the size asked for, within their budget."""

import numpy as np
import pytest

from kvlab.reference.simulator.synthetic import synthetic
from kvlab.reference.simulator.timeline import read, write


def test_every_head_keeps_as_many_entries_as_the_budget_lets_it():
    found = synthetic(3, 50, 20, 2, 3, 30, 7)
    assert len(found.runs) == 3
    for run in found.runs:
        assert (len(run.layers), run.kv_heads, run.read) == (2, 3, 50)
        np.testing.assert_allclose(run.entries(), np.minimum(run.steps, 30))
    assert len(read(write(found)).runs) == 3


def test_the_seed_decides():
    one, same, other = (synthetic(seed=seed).runs[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.last_step, same.last_step)
    assert (one.last_step != other.last_step).any()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layers": 0}, "layers = 0 must be at least 1"),
        ({"budget": -1}, "budget = -1 must be at least 1"),
        ({"tokens": 5, "prompt": 6}, "prompt = 6 must be at most tokens = 5"),
        ({"tokens": 5, "prompt": 2, "texts": ("a",)}, "there are 1, there must be tokens . 1 = 6"),
    ],
)
def test_impossible_sizes_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        synthetic(**wrong)
