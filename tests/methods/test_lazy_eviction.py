import numpy as np
import pytest

from kvlab.reference import methods
from support.build import kept, nothing_yet, observation, observe_rows, run, stream
from support.tables import cases
from support.tolerances import DECIMALS


def one_entry(active_at, born=3, now=12, **options):
    """Score an entry that is at the threshold at the given steps; everything else is below."""
    policy = methods.get("lazy_eviction@threshold=0.5,window=1", 4, **options)
    rows = []
    for step in range(1, now + 1):
        row = np.zeros(step)
        if step in active_at:
            row[born - 1] = 0.5
        rows.append(row)
    state, seen = observe_rows(policy.score, rows)
    everything = np.ones((1, now), dtype=bool)
    return state, float(policy.score.score(state, seen, everything, 0)[0, born - 1])


@cases(__file__, "readings_by_hand", "active options interval expected")
def test_readings_by_hand(active, options, interval, expected):
    """Born at 3, now 12: TS = 10, MRI = max(1, 2, 4, 1) = 4, Δ = 2. H1 = 2σ(−2/4) = .755081 and
    H2 = 2σ(−(4 − 1)) = .094852, where an entry is active at 3, 5, 9 and 10."""
    state, score = one_entry(active, **options)
    assert state.entries["interval"][0, 2] == interval
    if expected is not None:
        assert score == pytest.approx(expected, abs=DECIMALS)


def test_steps_are_counted_from_the_prompt_and_any_head_activates_by_hand():
    """Two tokens of prompt, whose attention is not read. Step 1: one of two heads pays .6 to entry
    0, the other .8 to entry 2; step 2: nobody pays ½. TS = 1 0 1 1, MRI = 1 0 1 0, Δ = 1 for entry
    0: 2σ(−1) + 2σ(0) = .537883 + 1."""
    score = methods.get("lazy_eviction@threshold=0.5,window=1", 4).score
    prompt = observation([[1.0, 0], [0.5, 0.5]], prompt=2)
    heads = [[[0.6, 0.1, 0.3, 0], [0.3, 0.3, 0.2, 0.2]], [[0.1, 0.1, 0.8, 0], [0.3, 0.3, 0.2, 0.2]]]
    seen = observation([heads], prompt=2)
    read = score.observe(nothing_yet(score, prompt), prompt).entries
    assert not any(column.any() for column in read.values())
    state = score.observe(nothing_yet(score, seen), seen)
    assert state.entries["stamp"].tolist() == [[1, 0, 1, 1]]
    assert state.entries["interval"].tolist() == [[1, 0, 1, 0]]
    found = score.score(state, seen, seen.positions >= 0, 0)
    np.testing.assert_allclose(found, [[1.537883, 0, 1.537883, 0]], atol=DECIMALS)


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


def test_the_newest_w_stay_beside_the_best_others():
    """Entries 0 and 1 get all attention; W = 2 and B = 3, so one of them stays, the later one."""
    rows = [np.eye(max(step, 2))[:2].sum(axis=0)[:step] for step in range(1, 7)]
    policy = methods.get("lazy_eviction@threshold=0.5,window=2", 3)
    assert kept(policy, *observe_rows(policy.score, rows)) == [1, 4, 5]


def test_the_cache_is_cut_at_every_second_token():
    """W = 2 and B = 3 after a prompt of 1: it may be cut at generated tokens 2, 4 and 6."""
    policy = methods.get("lazy_eviction@threshold=0.5,window=2", 3)
    results = run(policy, *stream(np.random.default_rng(0), 1, 1, 2, 7), prompt=1)
    assert [len(each.cache) for each in results] == [1, 2, 3, 4, 3, 4, 3]
