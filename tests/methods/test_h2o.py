import numpy as np
import pytest
from build import kept, observation, observe_rows
from tolerances import FLOAT64

from kvlab.reference import methods

ROWS = [[1.0], [0.6, 0.4], [0.2, 0.3, 0.5]]


def test_three_sums_by_hand():
    """S_0 = 1 + .6 + .2 = 1.8, S_1 = .4 + .3 = .7, S_2 = .5; together 3, one per row."""
    state, _ = observe_rows(methods.get("h2o", 2).score, ROWS)
    np.testing.assert_allclose(state.entries["accumulated"], [[1.8, 0.7, 0.5]], atol=FLOAT64)


@pytest.mark.parametrize(
    ("spec", "rows", "stay"),
    [
        ("h2o@recent=1", ROWS, [0, 2]),
        ("h2o@recent=0", ROWS, [0, 1]),
        ("h2o", [[1.0], [0.3, 0.7], [0.1, 0.9, 0.0]], [1, 2]),  # the newest, and S_1 = 1.6
    ],
)
def test_two_stay_by_hand(spec, rows, stay):
    """Half of the budget is recent by default."""
    policy = methods.get(spec, 2)
    assert kept(policy, *observe_rows(policy.score, rows)) == stay


@pytest.mark.parametrize(("reduce", "expected"), [("mean", 0.5), ("max", 0.8), ("sum", 1.0)])
def test_query_heads_are_reduced(reduce, expected):
    policy = methods.get("h2o", 4, reduce=reduce)
    seen = observation([[[[0.8, 0.2]], [[0.2, 0.8]]]])
    empty = observe_rows(policy.score, [[1.0], [0.0, 0.0]])[0].with_entries(
        accumulated=np.zeros((1, 2))
    )
    received = policy.score.observe(empty, seen).entries["accumulated"]
    np.testing.assert_allclose(received, [[expected, expected]], atol=FLOAT64)
