from dataclasses import dataclass

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.cache import State
from kvlab.reference.methods import vase
from kvlab.reference.methods.random import draws
from kvlab.reference.selection import keep_set
from support.build import Given, looking, observation
from support.tables import cases
from support.tolerances import FLOAT64

SHARES = np.array([0.5, 0.1, 0.2, 0.15, 0.05])


@dataclass(frozen=True, eq=False)
class Attended(vase.LargeValuesAndSample):
    """The score where attention is stated."""

    def attention(self, state, seen, candidates):
        return SHARES[None]


def drawing(waiting):
    noise = -np.expm1(-np.concatenate([[1.0, 1.0], waiting]))
    return Attended(Given(noise[None]), window=1, first=1, large=2)


def spread(numbers):
    """Values whose channels differ by as much."""
    return [[-each / 4, 3 * each / 4] for each in numbers]


def test_large_values_and_a_draw_by_hand():
    """The sink and the range of 6 stay. 0.2 / 0.9, 0.15 / 0.2, 0.05 / 0.1: entry 3 is drawn."""
    seen = observation(np.full((1, 5), 0.2), values=spread([0, 6, 0.3, 1.5, 0]))
    score = drawing([0.9, 0.2, 0.1])
    found = score.score(State(), seen, seen.positions >= 0, 3)
    np.testing.assert_allclose(found, [[np.inf, np.inf, 0.2 / 0.9, 0.75, 0.5]], rtol=1e-12)
    assert keep_set(found, np.zeros((1, 5), dtype=bool), 3).tolist() == [[0, 1, 3]]


def test_a_draw_of_two_includes_each_as_often_as_without_replacement():
    """First i, then j: 0.5 + 0.375·0.5/0.625 + 0.125·0.5/0.875 = 0.871, and so on."""
    seen = observation(np.full((1, 5), 0.2), values=spread([0, 6, 0.3, 1.5, 0]))
    times, found = 20000, np.zeros(5)
    waiting = -np.log1p(-draws(1, np.arange(3), np.arange(times)[:, None]))
    for each in waiting:
        scores = drawing(each).score(State(), seen, seen.positions >= 0, 4)
        found[keep_set(scores, np.zeros((1, 5), dtype=bool), 4)[0]] += 1
    wanted = np.array([0.871, 0.804, 0.325])
    errors = np.sqrt(wanted * (1 - wanted) / times)
    assert (abs(found[2:] / times - wanted) < 4 * errors + 5e-4).all()


def test_the_last_rows_pay_the_candidates_alone_by_hand():
    """Rows 1 2 4 1 and 4 2 1 1 of 8 over the candidates, means 5, 4, 5, 2 of 16; over five
    neighbours 14, 16, 16, 11 of 80."""
    weights = [[1] * 6] * 4 + [[1, 2, 4, 1, 9, 1], [4, 2, 1, 1, 9, 9]]
    seen, score = looking([[weights]]), methods.get("vase@recent=2", 4).score
    found = score.attention(score.observe(State(), seen), seen, seen.positions < 4)
    np.testing.assert_allclose(found[0, :4], np.array([14, 16, 16, 11]) / 80, atol=FLOAT64)


def test_projected_norms_by_hand(monkeypatch):
    """Γ takes the first channel: 1·4, 4·1, 1·9 of 17; the sink counts as 1."""
    monkeypatch.setattr(vase, "projection", lambda *_: np.array([[1.0], [0.0]]))
    keys, values = [[1, 5], [2, 5], [1, 5]], [[2, 7], [1, 7], [3, 7]]
    seen = observation(np.full((1, 3), 1 / 3), keys=keys, values=values)
    policy = methods.get("vase@recent=1,first=1,rated_by=norms", 2)
    scores = policy.score.score(State(), seen, seen.positions >= 0, 1)
    np.testing.assert_allclose(scores, [[1.0, 4 / 17, 9 / 17]], rtol=1e-12)


def test_the_projection_is_normal_and_drawn_anew():
    columns = np.concatenate([vase.projection(64, 0, 0, time) for time in range(50)])
    assert abs(columns.mean()) < 4 * np.sqrt(1 / 20 / columns.size)
    assert abs(20 * columns.var() - 1) < 4 * np.sqrt(2 / columns.size)
    assert abs((columns * np.sqrt(20) < 1).mean() - 0.8413) < 4 * np.sqrt(0.13 / columns.size)
    one, other = vase.projection(64, 0, 0, 1), vase.projection(64, 0, 1, 1)
    assert not np.allclose(one, other)


@cases(__file__, "what_makes_a_value_large_by_hand", "size large")
def test_what_makes_a_value_large_by_hand(size, large):
    """Ranges 0, 8, 7; squared lengths 75, 32, 36.75; variances 0, 10.7, 10.9."""
    seen = observation(np.full((1, 3), 1 / 3), values=[[5, 5, 5], [0, 4, -4], [3.5, -3.5, -3.5]])
    policy = methods.get(f"vase@recent=1,first=0,large=0.5,size={size}", 2)
    state = policy.score.observe(State(), seen)
    found = policy.score.score(state, seen, seen.positions >= 0, 1)
    assert np.isinf(found).tolist() == [[place == large for place in range(3)]]


def test_large_values_must_leave_room():
    with pytest.raises(ValueError, match=r"large = 0\.9 of budget = 10 must leave recent = 4"):
        methods.get("vase@recent=4,large=0.9", 10)
