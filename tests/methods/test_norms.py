"""KNorm and the baseline of value norms: lengths of vectors and nothing else."""

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.cache import State
from kvlab.reference.observation import Clock
from support.build import kept, observation

ATTENTION = [[0.2, 0.3, 0.5]]
KEYS = [[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]]
VALUES = [[0.0, 2.0], [3.0, 4.0], [1.0, 0.0]]


def scored(spec, attention=ATTENTION, **vectors):
    seen = observation(attention, **vectors)
    return methods.get(spec, 2).score.score(State(), seen, seen.positions >= 0, 2)


@pytest.mark.parametrize(
    ("spec", "vectors", "scores", "stay"),
    [
        ("knorm", {"keys": KEYS}, [[-5.0, -1.0, -2.0]], [1, 2]),
        ("value_norm", {"values": VALUES}, [[2.0, 5.0, 1.0]], [0, 1]),
    ],
)
def test_three_lengths_by_hand(spec, vectors, scores, stay):
    """The longest key leaves, at every token; so does the shortest value, though read most."""
    assert scored(spec, **vectors).tolist() == scores
    policy = methods.get(spec, 2)
    assert kept(policy, State(), observation(ATTENTION, **vectors)) == stay
    assert all(policy.schedule.due(Clock(seen, 1, 3)) for seen in (4, 5))


def test_caote_takes_lengths_for_weights():
    """Values (1, 0), (0, 1), (0, 2) have the lengths 1, 1, 2, so the weights ¼, ¼, ½.

    X = (¼, ¼ + 1) = (¼, 5/4). The errors are ⅓·‖(−¾, 5/4)‖ = ⅓·√34/4, ⅓·‖(¼, ¼)‖ = ⅓·√2/4, and
    1·‖(¼, −¾)‖ = √10/4.
    """
    found = scored("caote:value_norm", values=[[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    expected = [[np.sqrt(34) / 12, np.sqrt(2) / 12, np.sqrt(10) / 4]]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
