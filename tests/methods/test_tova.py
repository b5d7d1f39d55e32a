import numpy as np
import pytest
from build import kept, observation, run, stream
from tolerances import FLOAT64

from kvlab.reference import methods
from kvlab.reference.cache import State
from kvlab.reference.step import select


@pytest.mark.parametrize(
    ("attention", "stay"),
    [
        # two heads, (.5, .3, .2) and (.1, .3, .6): mean (.3, .3, .4); of the tie the later stays
        ([[[[0.5, 0.3, 0.2]], [[0.1, 0.3, 0.6]]]], [1, 2]),
        # only the last row counts, and the newest may go
        ([[0.9, 0.1, 0.0], [0.4, 0.5, 0.1]], [0, 1]),
    ],
)
def test_two_stay_by_hand(attention, stay):
    assert kept(methods.get("tova", 2), State(), observation(attention)) == stay


def test_all_kv_heads_share_one_keep_set():
    """Heads .7/.2/.1 and .1/.2/.7 alone would drop 2 and 0; their mean drops 1."""
    seen = observation([[[[0.7, 0.2, 0.1]]], [[[0.1, 0.2, 0.7]]]])
    shared = select(methods.get("tova", 2), State(), seen).keep
    own = select(methods.get("tova@per_head=true", 2), State(), seen).keep
    assert shared.tolist() == [[0, 2], [0, 2]]
    assert own.tolist() == [[0, 1], [1, 2]]


def test_scores_sum_to_one():
    queries, keys, values = stream(np.random.default_rng(2), 2, 2, 4, 15)
    policy = methods.get("tova", 6)
    for result in run(policy, queries, keys, values, prompt=5):
        everything = np.ones(result.seen.positions.shape, dtype=bool)
        scores = policy.score.score(result.cache.state, result.seen, everything, 0)
        np.testing.assert_allclose(scores.sum(axis=-1), 1, atol=FLOAT64)
