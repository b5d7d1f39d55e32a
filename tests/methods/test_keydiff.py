import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.cache import State
from support.build import kept, observation
from support.tables import cases

KEYS = [[1.0, 0.0], [0.8, 0.6], [0.0, 2.0], [-1.0, 0.0]]


def scored(spec, keys):
    seen = observation([[0.25] * len(keys)], keys=keys)
    policy = methods.get(spec, 2)
    return policy.score.score(State(), seen, seen.positions >= 0, 2)[0], kept(policy, State(), seen)


@pytest.mark.parametrize(
    ("anchor", "mean", "stay"),
    [("directions", [0.2, 0.4], [0, 3]), ("keys", [0.2, 0.65], [0, 3])],
)
def test_the_mean_direction_by_hand(anchor, mean, stay):
    """Directions (1, 0), (0.8, 0.6), (0, 1), (-1, 0) sum to (0.8, 1.6), the keys to (0.8, 2.6).

    Cosines with (0.2, 0.4): 0.2, 0.16 + 0.24, 0.4, -0.2, each over sqrt 0.2. Entry 1 and entry 2
    tie there; with the keys' mean, entry 1 is worth more.
    """
    scores, left = scored(f"keydiff@anchor={anchor}", KEYS)
    x, y = mean
    cosines = np.array([x, 0.8 * x + 0.6 * y, y, -x]) / np.hypot(x, y)
    np.testing.assert_allclose(scores, -cosines, rtol=1e-12)
    assert left == stay
    assert (scores[1] > scores[2] + 0.1) == (anchor == "keys")


def test_keys_without_a_direction_are_worth_nothing_either_way():
    """A key of zeros scores 0; so do all keys if their directions cancel out."""
    scores, _ = scored("keydiff", [[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    assert scores.tolist() == [-1.0, 0.0, -1.0]
    assert not scored("keydiff", [[1.0, 0.0], [-1.0, 0.0]])[0].any()


@cases(__file__, "the_mean_is_of_protected_keys_too", "anchor mean")
def test_the_mean_is_of_protected_keys_too(anchor, mean):
    """The last key is protected, and the mean is as above; of the others alone it would be
    (0.6, 0.53) of the directions, from which the third is furthest and not the first."""
    seen = observation([[0.25] * 4], keys=KEYS)
    policy = methods.get(f"keydiff@anchor={anchor},recent=1", 2)
    scores = policy.score.score(State(), seen, ~policy.protect.protected(seen), 1)[0, :3]
    x, y = mean
    cosines = np.array([x, 0.8 * x + 0.6 * y, y]) / np.hypot(x, y)
    np.testing.assert_allclose(scores, -cosines, rtol=1e-12)
    assert kept(policy, State(), seen) == [0, 3]
