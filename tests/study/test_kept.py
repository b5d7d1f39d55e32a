"""What a method keeps of a generation is drawn as it was recorded."""

import numpy as np
import pytest

from kvlab.reference.simulator.timeline import FIRST_STATES, GONE, Run
from study.kept import kept_bits, kept_over_steps


def run(budget=3):
    """Three tokens of a prompt and two more; 2 layers, 2 KV heads; position 0 is stored at 4 and 8
    bits from step 1 on, and head 0 of layer 1 loses position 1 at step 2."""
    lowered = [(layer, head, 0, 1, 2) for layer in (0, 1) for head in (0, 1)]
    events = np.vstack([lowered, [(1, 0, 1, 2, GONE)]])
    return Run(
        "a method",
        budget,
        3,
        ("a",) * 6,
        None,
        (0, 1),
        2,
        np.array([3, 4, 5]),
        np.array([False, True, True]),
        (*FIRST_STATES, (4, 8)),
        events,
        (),
    )


def test_bits_are_means_over_keys_values_layers_and_heads():
    nan = np.nan
    expected = [[16, 6, 6], [16, 16, 12], [16, 16, 16], [nan, 16, 16], [nan, nan, 16]]
    np.testing.assert_array_equal(kept_bits(run()), expected)


def test_the_picture_says_what_it_shows():
    picture = kept_over_steps(run())
    assert "with a budget of 3 entries of 3 tokens of a prompt and the 2 that follow" in (
        picture.description
    )
    assert "still holds 3 positions of the prompt and 2 of the answer, at 13.2 bits" in (
        picture.description
    )
    assert "a KV head holds 5 entries at most" in picture.description
    assert ">budget<" in picture.svg and ">full cache<" in picture.svg
    assert "data:image/png" in picture.svg and "http" not in picture.svg.partition(">")[2]


@pytest.mark.parametrize("budget", [None, 3])
def test_a_budget_is_drawn_where_there_is_one(budget):
    assert (">budget<" in kept_over_steps(run(budget)).svg) == (budget is not None)
