"""Was it there when it mattered again?"""

import numpy as np
import pytest
from noise import noise

from kvlab.reference import methods
from kvlab.reference.simulator.judge import judge, recall, skill
from kvlab.reference.simulator.replay import Fate, FullAttention, Layer
from kvlab.reference.simulator.workloads import periodic_recurrence


class Scripted(Layer):
    """A layer of one head whose attention is written down."""

    def full_attention(self, first, last):
        attention = SCRIPT[None, None, first:last, :last]
        return FullAttention(attention, np.zeros((1, 1, last - first, 1)))


SCRIPT = np.zeros((8, 8))
SCRIPT[1, 0] = 0.5  # activated while the prompt is read
SCRIPT[5, 0] = 0.5  # regained after 4 tokens
SCRIPT[6, 0] = 0.5  # at once again: no gap
SCRIPT[6, 2] = 0.2  # regained, 4 tokens after its birth
SCRIPT[7, 3] = 0.1  # below the threshold
SCRIPT[7, 1] = 0.3  # regained, 6 tokens after its birth


def scripted(prompt=2):
    vectors = np.zeros((1, 8, 1))
    return Scripted(vectors[:, None], vectors, vectors, np.full(8, np.nan), prompt, ())


def fate(left):
    ones = np.ones((1, 8))
    return Fate("written", 0, np.array([left]), np.ones(8, int), ones[0], ones, ones)


def test_hits_and_premature_evictions_counted_by_hand():
    everything, some = fate([8] * 8), fate([5, 4, 5, 3, 8, 8, 8, 8])
    all_there, some_gone = recall(scripted(), [everything, some], threshold=0.15, gap=3)
    assert (all_there.regained.item(), all_there.hits.item()) == (3, 3)
    assert (all_there.evicted.item(), all_there.premature.item()) == (0, 0)
    # entry 0 left after token 5, which still found it; entries 1 and 2 had left when looked at
    assert (some_gone.regained.item(), some_gone.hits.item()) == (3, 1)
    # of 0, 1, 2 and 3 that left, 0, 1 and 2 were activated later
    assert (some_gone.evicted.item(), some_gone.premature.item()) == (4, 3)


def test_a_longer_gap_asks_for_less():
    found = [recall(scripted(), [], 0.15, gap) for gap in (0, 3, 5)]
    assert found == [[], [], []]
    counts = [
        recall(scripted(), [fate([8] * 8)], 0.15, gap)[0].regained.item() for gap in (0, 3, 5)
    ]
    assert counts == [4, 3, 1]


def test_nothing_is_asked_of_the_prompt():
    (found,) = recall(scripted(prompt=6), [fate([8] * 8)], 0.15, 3)
    assert found.regained.item() == 2  # by token 6 and token 7


@pytest.mark.parametrize(
    ("arguments", "message"), [((-0.1, 3), "threshold = -0.1"), ((0.1, -1), "gap = -1")]
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        recall(scripted(), [], *arguments)


def test_lagged_tracking_hits_what_recurs_more_often():
    workload = periodic_recurrence(seed=0)
    policies = [
        methods.get("lazy_eviction@window=64,threshold=0.05", 112),
        methods.get("tova", 112),
    ]
    ((lazy, tova),) = judge(workload.trace, policies, threshold=0.05, exact=False)
    rates = [each.recall.hits.sum() / each.recall.regained.sum() for each in (lazy, tova)]
    assert rates[0] > rates[1] + 0.2
    assert skill([lazy]) > skill([tova])


def test_workers_change_nothing():
    policies = [methods.get("h2o", 12), methods.get("desirekv@interval=8,selector=2,group=4")]
    alone, shared = ([*judge(noise(), policies, workers=n)] for n in (1, 2))
    for one, two in zip(alone, shared, strict=True):
        for first, second in zip(one, two, strict=True):
            assert (first.mass, first.best, first.random) == (
                second.mass,
                second.best,
                second.random,
            )
            np.testing.assert_array_equal(first.recall.hits, second.recall.hits)


def test_chance_has_no_skill_and_a_full_cache_none_to_have():
    (judged, _) = judge(noise(), [methods.get("full")])
    assert np.isnan(skill(judged))
    assert judged[0].regret == pytest.approx(0)
