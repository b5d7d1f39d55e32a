import numpy as np
import pytest

from kvlab.reference import methods
from support.build import kept, nothing_yet, observation, observe_rows, paying, run
from support.tables import cases
from support.tolerances import FLOAT64

ROWS = [[1.0], [0.6, 0.4], [0.2, 0.3, 0.5]]


def test_three_sums_by_hand():
    """S_0 = 1 + .6 + .2 = 1.8, S_1 = .4 + .3 = .7, S_2 = .5; together 3, one per row."""
    state, _ = observe_rows(methods.get("h2o", 2).score, ROWS)
    np.testing.assert_allclose(state.entries["accumulated"], [[1.8, 0.7, 0.5]], atol=FLOAT64)


@cases(__file__, "two_stay_by_hand", "spec rows stay")
def test_two_stay_by_hand(spec, rows, stay):
    """Half of the budget is recent by default."""
    policy = methods.get(spec, 2)
    assert kept(policy, *observe_rows(policy.score, rows or ROWS)) == stay


def test_sums_go_with_their_entries_by_hand():
    """B = 2, the newest is protected. S_0 = 1 + 1/4 + 1/8, S_1 = 3/4 + 3/8, S_2 = 4/8: 1 is
    evicted. The next token pays 1/4, 2/4 and 1/4: S = 13/8, 1, 1/4 of 0, 2, 3, and 2 is evicted."""
    rows = [[1], [1, 3], [1, 3, 4], [1, 9, 2, 1]]
    *_, first, second = run(methods.get("h2o@recent=1", 2), *paying(rows), prompt=0)
    assert first.cache.positions.tolist() == [[0, 2]]
    assert second.seen.positions.tolist() == [[0, 2, 3]]
    np.testing.assert_allclose(second.decision.scores, [[13 / 8, 1, 1 / 4]], atol=FLOAT64)
    assert second.cache.positions.tolist() == [[0, 3]]
    np.testing.assert_array_equal(second.cache.keys.vectors[0], 2 * np.eye(4)[[0, 3]])
    np.testing.assert_array_equal(second.cache.values.vectors[0], np.eye(4)[[0, 3]])
    np.testing.assert_allclose(
        second.cache.state.entries["accumulated"], [[13 / 8, 1 / 4]], atol=FLOAT64
    )


@pytest.mark.parametrize(
    ("reduce", "expected"), [("mean", [1.3, 0.7]), ("max", [1.6, 1.0]), ("sum", [2.6, 1.4])]
)
def test_query_heads_are_reduced_row_by_row(reduce, expected):
    """Entry 0 is paid .5, .8 by one head and .8, .5 by the other: .8 + .8, not max(1.3, 1.3)."""
    score = methods.get("h2o", 4, reduce=reduce).score
    seen = observation([[[[0.5, 0.5], [0.8, 0.2]], [[0.8, 0.2], [0.5, 0.5]]]])
    received = score.observe(nothing_yet(score, seen), seen).entries["accumulated"]
    np.testing.assert_allclose(received, [expected], atol=FLOAT64)
