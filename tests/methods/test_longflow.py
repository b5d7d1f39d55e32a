import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.cache import State
from support.build import kept, looking, observation
from support.tolerances import FLOAT64

ROWS = [[[[0.5, 0.2, 0.1, 0.2]], [[0.3, 0.4, 0.1, 0.2]]]]
VALUES = [[0.1, -0.1], [1, 1], [2, -3], [0.5, 0.5]]


def decided(spec, attention, values, prompt=1):
    seen = observation(attention, values=values, prompt=prompt)
    policy = methods.get(spec, 3)
    return policy.score.score(State(), seen, seen.positions >= 0, 3), kept(policy, State(), seen)


def test_the_least_contribution_leaves_by_hand():
    """Lengths 0.2, 2, 5, 1 times mean rows 0.4, 0.3, 0.1, 0.2, over d = 2: the entry that is
    attended most leaves, because its value is short."""
    scores, stay = decided("longflow@window=1", ROWS, VALUES)
    np.testing.assert_allclose(scores, [[0.04, 0.30, 0.25, 0.10]], atol=FLOAT64)
    assert stay == [1, 2, 3]


@pytest.mark.parametrize(("heads", "scores"), [("apart", [[0.2], [0.4]]), ("joined", [[0.3]] * 2)])
def test_all_heads_of_a_layer_choose_together(heads, scores):
    """Two KV heads pay entry 0 the weights 0.2 and 0.4, for values of length 2 in d = 2."""
    attention = [[[[0.2, 0.8]]], [[[0.4, 0.6]]]]
    found, _ = decided(f"longflow@window=1,heads={heads}", attention, np.ones((2, 2, 2)))
    np.testing.assert_allclose(found[:, :1], scores, atol=FLOAT64)


def test_the_newest_entry_competes_unless_it_is_protected():
    """The newest has the shortest value."""
    rows, values = [[[[0.25] * 4]]], [[1, 1], [2, 2], [3, 3], [0.5, 0]]
    assert decided("longflow@window=1", rows, values)[1] == [0, 1, 2]
    assert decided("longflow@window=1,recent=1", rows, values)[1] == [1, 2, 3]


def test_after_the_prompt_its_last_rows_decide_by_hand():
    """Two last rows pay the older four 1 2 4 1 and 4 2 1 1, each of 8: sums 5, 4, 5, 2 of 8.

    The mean of 5 neighbours, zeros beyond the border: 14, 16, 16, 11 of 40. The window stays.
    """
    weights = [[1] * 6] * 4 + [[1, 2, 4, 1, 9, 1], [4, 2, 1, 1, 9, 9]]
    seen = looking([[weights]], prompt=6)
    policy = methods.get("longflow@window=2,heads=apart", 4)
    state = policy.score.observe(State(), seen)
    scores = policy.score.score(state, seen, seen.positions >= 0, 4)
    np.testing.assert_allclose(scores[0, :4], np.array([14, 16, 16, 11]) / 40, atol=FLOAT64)
    assert kept(policy, state, seen) == [1, 2, 4, 5]


def test_nothing_is_remembered_after_the_prompt():
    score = methods.get("longflow@window=2,heads=apart", 4).score
    state = score.observe(State(), looking([[[[1, 1, 1]] * 3]], prompt=3))
    assert state.stream
    assert not score.observe(state, looking([[[[1, 1, 1, 1]]]], prompt=3)).stream
