import numpy as np
import pytest
from hypothesis import given, strategies as st

from kvlab.reference.selection import budget_entries, keep_set, rank
from support.refused import refused
from support.tables import cases


@cases(__file__, "budgets_are_converted_by_rounding_up", "budget length entries")
def test_budgets_are_converted_by_rounding_up(budget, length, entries):
    """30 % of 222 is 66.6; 10 % of 100 is exactly 10, and 7 % of it exactly 7, although 0.07·100 is
    7.000000000000001 in float."""
    assert budget_entries(budget, length) == entries


@refused(__file__)
def test_other_budgets_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        budget_entries(eval(bad), 100)


def test_of_equal_scores_the_later_stays():
    scores = np.array([[1.0, 2.0, 1.0, 1.0]])
    nobody = np.zeros((1, 4), dtype=bool)
    assert keep_set(scores, nobody, 2).tolist() == [[1, 3]]
    assert rank(scores).tolist() == [[0, 3, 1, 2]]


def test_ranks_of_many_equal_scores_are_in_order():
    """Sorting that is not stable leaves up to 16 equal scores in order, but not 20 and 20."""
    scores = np.tile([1.0, 0.0], 20)
    assert rank(scores).tolist() == [each for i in range(20) for each in (20 + i, i)]


@given(st.data())
def test_keep_sets_equal_brute_force(data):
    n = data.draw(st.integers(1, 9))
    scores = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), float)
    protected = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    room = data.draw(st.integers(0, n))
    rest = [j for j in range(n) if not protected[j]]
    best = sorted(rest, key=lambda j: (scores[j], j))[max(0, len(rest) - room) :]
    expected = sorted([*np.flatnonzero(protected), *best])
    assert keep_set(scores[None], protected[None], room).tolist() == [expected]


def test_nan_is_an_error_unless_nobody_looks_at_it():
    scores = np.array([[np.nan, 1.0, 2.0]])
    protected = np.array([[True, False, False]])
    assert keep_set(scores, protected, 1).tolist() == [[0, 2]]
    with pytest.raises(ValueError, match="scores must not be NaN"):
        keep_set(scores, ~protected, 0)


def test_heads_must_protect_equally_many():
    protected = np.array([[True, False], [True, True]])
    with pytest.raises(ValueError, match="every KV head must protect equally many entries"):
        keep_set(np.zeros((2, 2)), protected, 1)
