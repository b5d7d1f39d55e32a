import numpy as np
from build import kept, observation

from kvlab.reference import methods
from kvlab.reference.cache import State

ATTENTION = [[0.2, 0.3, 0.5]]
VALUES = [[0.0, 2.0], [3.0, 4.0], [1.0, 0.0]]


def scored(spec, seen, room=2):
    return methods.get(spec, 2).score.score(State(), seen, seen.positions >= 0, room)


def test_three_values_by_hand():
    """Lengths of (0, 2), (3, 4), (1, 0): 2, 5, 1. The last goes, though it is read most."""
    seen = observation(ATTENTION, values=VALUES)
    assert scored("value_norm", seen).tolist() == [[2.0, 5.0, 1.0]]
    assert kept(methods.get("value_norm", 2), State(), seen) == [0, 1]


def test_keys_and_attention_change_nothing():
    keys = [[9.0, 0.0], [0.0, 0.1], [5.0, 5.0]]
    plain = observation(ATTENTION, values=VALUES)
    other = observation([[0.9, 0.1, 0.0]], keys=keys, values=VALUES)
    np.testing.assert_array_equal(scored("value_norm", plain), scored("value_norm", other))


def test_of_equal_lengths_the_later_stays():
    seen = observation(ATTENTION, values=[[0.0, 2.0], [2.0, 0.0], [-2.0, 0.0]])
    assert kept(methods.get("value_norm", 2), State(), seen) == [1, 2]


def test_caote_takes_lengths_for_weights():
    """Values (1, 0), (0, 1), (0, 2) have the lengths 1, 1, 2, so the weights ¼, ¼, ½.

    X = (¼, ¼ + 1) = (¼, 5/4). The errors are ⅓·‖(−¾, 5/4)‖ = ⅓·√34/4, ⅓·‖(¼, ¼)‖ = ⅓·√2/4, and
    1·‖(¼, −¾)‖ = √10/4.
    """
    seen = observation(ATTENTION, values=[[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    expected = [[np.sqrt(34) / 12, np.sqrt(2) / 12, np.sqrt(10) / 4]]
    np.testing.assert_allclose(scored("caote:value_norm", seen), expected, rtol=1e-12)
