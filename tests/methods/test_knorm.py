import numpy as np
from build import kept, observation

from kvlab.reference import methods
from kvlab.reference.cache import State

ATTENTION = [[0.2, 0.3, 0.5]]


def seen_with(keys):
    return observation(ATTENTION, keys=keys)


def test_three_keys_by_hand():
    """Lengths of (3, 4), (1, 0), (0, 2): 5, 1, 2. The first goes."""
    seen = seen_with([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]])
    scores = methods.get("knorm", 2).score.score(State(), seen, seen.positions >= 0, 2)
    assert scores.tolist() == [[-5.0, -1.0, -2.0]]
    assert kept(methods.get("knorm", 2), State(), seen) == [1, 2]


def test_turning_a_key_changes_nothing():
    angle = 0.7
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    keys = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]])
    score = methods.get("knorm", 2).score
    found = [
        score.score(State(), seen := seen_with(each.tolist()), seen.positions >= 0, 2)
        for each in (keys, keys @ turn.T)
    ]
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_of_equal_lengths_the_later_stays():
    seen = seen_with([[0.0, 2.0], [2.0, 0.0], [-2.0, 0.0]])
    assert kept(methods.get("knorm", 2), State(), seen) == [1, 2]
