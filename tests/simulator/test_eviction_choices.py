"""The victims of one step, by hand, and against attention computed anew."""

import numpy as np
import pytest
from tolerances import FLOAT64

from kvlab.reference.models import reasoner_directory
from kvlab.reference.proofs.outputs import output_without
from kvlab.reference.simulator.observed import Head, choice, choices, least, observe_heads


def head(weights, values):
    """One head of one channel whose queries pay attention in proportion to whole numbers."""
    t = len(weights)
    keys = np.log(np.asarray(weights, dtype=float))[:, None]
    return Head(0, 0, np.ones((t, 1)), keys, np.asarray(values, dtype=float)[:, None])


def test_attention_and_error_name_other_entries():
    # weights 2, 3, 15, 1 of 21; values 10, 1, 1, 1: output 39/21 = 13/7.
    # entry 0: 2/19·(10 − 13/7) = 6/7; entry 1: 3/18·(13/7 − 1) = 1/7; over 13/7: 6/13 and 1/13.
    found = choice(head([2, 3, 15, 1], [10, 1, 1, 1]), 0.0, first=3)
    np.testing.assert_allclose(found.by_attention, [6 / 13], atol=FLOAT64)
    np.testing.assert_allclose(found.by_error, [1 / 13], atol=FLOAT64)
    assert found.common.tolist() == [0]


def test_several_leave_together():
    # without entries 0 and 1 all values are 1: 13/7 − 1 = 6/7, over 13/7: 6/13.
    found = choice(head([2, 3, 15, 1], [10, 1, 1, 1]), 0.7, first=3)
    np.testing.assert_allclose(found.by_attention, [6 / 13], atol=FLOAT64)


def test_the_last_entry_never_leaves():
    assert least(np.array([3.0, 1, 2, 0]), 2).tolist() == [False, True, True, False]


def test_on_the_reasoner_one_victim_of_least_error_is_the_best_there_is():
    heads, query = observe_heads(reasoner_directory()), 160
    found = choices(heads, first=query)
    assert all((one.by_error <= one.by_attention + FLOAT64).all() for one in found)
    h, values = heads[5].attention()[query, : query + 1], heads[5].values[: query + 1]
    recomputed = [
        np.linalg.norm(output_without(np.log(h), values, [j]) - h @ values) for j in range(query)
    ]
    best = min(recomputed) / np.linalg.norm(h @ values)
    assert found[5].by_error[0] == pytest.approx(best, rel=1e-6)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="first = 1 must be at least 2"):
        choices([], first=1)
    with pytest.raises(ValueError, match="share = 1 must be at least 0 and below 1"):
        choices([], share=1)
