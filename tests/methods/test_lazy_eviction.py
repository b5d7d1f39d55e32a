from itertools import pairwise

import numpy as np
import pytest
from build import kept, observe_rows, run, stream
from hypothesis import given
from hypothesis import strategies as st
from tolerances import DECIMALS

from kvlab.reference import methods
from kvlab.reference.methods.lazy_eviction import decreasing


def one_entry(active_at, born=3, now=12, **options):
    """Score an entry that is above the threshold at the given steps; everything else is below."""
    policy = methods.get("lazy_eviction@threshold=0.5,window=1", 4, **options)
    rows = []
    for step in range(1, now + 1):
        row = np.zeros(step)
        if step in active_at:
            row[born - 1] = 1.0
        rows.append(row)
    state, seen = observe_rows(policy.score, rows)
    everything = np.ones((1, now), dtype=bool)
    return state, float(policy.score.score(state, seen, everything, 0)[0, born - 1])


def test_the_example_of_the_paper_by_hand():
    """Born at 3, active at 3, 5, 9, 10, now 12: TS = 10, MRI = max(1, 2, 4, 1) = 4, Δ = 2.
    H1 = 2σ(−2/4) = .755081, H2 = 2σ(−(4 − 1)) = .094852."""
    state, score = one_entry({3, 5, 9, 10})
    assert state.entries["stamp"][0, 2] == 10 and state.entries["interval"][0, 2] == 4
    assert score == pytest.approx(0.755081 + 0.094852, abs=DECIMALS)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"h2_reading": "printed"}, 0.755081 + 0.834860),
        ({"official": True}, 0.364851 + 0.094852),
        ({"h1": "none"}, 0.094852),
        ({"h2": "none"}, 0.755081),
        ({"h1": "exp"}, np.exp(-0.5) + 0.094852),
        ({"h1": "tanh"}, 1 - np.tanh(0.5) + 0.094852),
        ({"h2": "inverse"}, 0.755081 + 1 / 4),
        ({"h2": "log"}, 0.755081 + 1 / (1 + np.log(4))),
        ({"h2_reading": "acl"}, 0.755081 + 2 / (1 + np.exp(5))),
    ],
)
def test_other_readings_by_hand(options, expected):
    assert one_entry({3, 5, 9, 10}, **options)[1] == pytest.approx(expected, abs=DECIMALS)


def test_an_interval_of_one_under_the_printed_h2():
    """MRI = 1: the printed formula has no value; its limit from the right, 0, is taken."""
    state, score = one_entry({3, 4, 5}, h2_reading="printed")
    assert state.entries["interval"][0, 2] == 1
    assert score == pytest.approx(2 / (1 + np.exp(7)), abs=DECIMALS)


def test_the_stamp_may_start_at_birth_as_in_raas():
    assert one_entry({9}, stamp_start="birth")[0].entries["interval"][0, 2] == 6
    state, score = one_entry({3}, stamp_start="birth")
    assert state.entries["interval"][0, 2] == 0 and score == 0.0


def test_without_an_interval_the_limit_of_h1_may_stay():
    """Activated for the first time: at the last step Δ = 0, before it Δ > 0."""
    options = {"stamp_start": "first_activation", "zero_interval": "limit"}
    assert one_entry({12}, **options)[1] == 1.0
    assert one_entry({9}, **options)[1] == 0.0
    assert one_entry({12}, **options, h1="none")[1] == 0.0
    official = one_entry({12}, **options, official=True)[1]
    assert official == pytest.approx(2 / (1 + np.e), abs=DECIMALS)


def test_first_activation_may_not_count():
    assert one_entry({9}, stamp_start="before_birth")[0].entries["interval"][0, 2] == 7
    assert one_entry({9}, stamp_start="first_activation")[0].entries["interval"][0, 2] == 0


def test_never_activated_is_worth_nothing():
    assert one_entry(set())[1] == 0.0


@given(st.lists(st.booleans(), min_size=1, max_size=25))
def test_recurrence_equals_brute_force(activity):
    """MRI = longest gap between activations, the step before birth counted as one."""
    active = {3 + i for i, is_active in enumerate(activity) if is_active}
    now = 2 + len(activity)
    state, _ = one_entry(active, born=3, now=now)
    times = [2, *sorted(active)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert state.entries["interval"][0, 2] == max(gaps, default=0)
    assert state.entries["stamp"][0, 2] == times[-1]


@pytest.mark.parametrize("form", ["sigmoid", "exp", "tanh", "inverse", "log"])
def test_forms_fall_from_one_to_zero(form):
    x = np.linspace(0, 15, 200)
    y = decreasing(form)(x)
    assert y[0] == 1 and (np.diff(y) < 0).all() and (y > 0).all()


@pytest.mark.parametrize("threshold", [0.0, 2.0])
def test_all_or_nothing_active_keeps_the_newest(threshold):
    queries, keys, values = stream(np.random.default_rng(24), 1, 2, 4, 24)
    policy = methods.get("lazy_eviction@window=4", 8, threshold=threshold)
    cache = run(policy, queries, keys, values, prompt=0)[-1].cache
    assert cache.positions[0].tolist() == list(range(16, 24))


def test_it_looks_every_w_steps_and_not_in_prefill():
    queries, keys, values = stream(np.random.default_rng(25), 1, 2, 4, 34)
    results = run(methods.get("lazy_eviction@window=4", 8), queries, keys, values, prompt=14)
    due = [r.seen.clock.generated for r in results if r.keep is not None]
    assert due == [4, 8, 12, 16, 20]
    assert [len(r.cache) for r in results[:6]] == [14, 15, 16, 17, 8, 9]


def test_the_guard_spares_what_is_not_overdue():
    """Entry 1 (MRI 7, Δ 3) is not overdue, entry 3 (MRI 1, Δ 1) is; the score prefers entry 3."""
    rows = [np.zeros(step) for step in range(1, 11)]
    rows[6][0] = 1.0
    rows[2][2] = rows[8][2] = 0.0
    rows[8][8] = 1.0
    plain = methods.get("lazy_eviction@threshold=0.5,window=1", 2)
    guard = methods.get("lazy_eviction@threshold=0.5,window=1,guard=true", 2)
    assert kept(plain, *observe_rows(plain.score, rows)) == [8, 9]
    assert kept(guard, *observe_rows(guard.score, rows)) == [0, 9]
