import numpy as np
import pytest

from kvlab.reference import methods
from support.build import kept, nothing_yet, observation, observe_rows, run, stream
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


PAPER = {3, 5, 9, 10}
"""Born at 3, now 12: TS = 10, MRI = max(1, 2, 4, 1) = 4, Δ = 2. H1 = 2σ(−2/4) = .755081 and
H2 = 2σ(−(4 − 1)) = .094852."""
LIMIT = {"stamp_start": "first_activation", "zero_interval": "limit"}


@pytest.mark.parametrize(
    ("active", "options", "interval", "expected"),
    [
        (PAPER, {}, 4, 0.755081 + 0.094852),
        (PAPER, {"h2_reading": "printed"}, 4, 0.755081 + 0.834860),
        (PAPER, {"official": True}, 4, 0.364851 + 0.094852),
        (PAPER, {"h1": "none"}, 4, 0.094852),
        (PAPER, {"h2": "none"}, 4, 0.755081),
        (PAPER, {"h1": "exp"}, 4, np.exp(-0.5) + 0.094852),
        (PAPER, {"h1": "tanh"}, 4, 1 - np.tanh(0.5) + 0.094852),
        (PAPER, {"h2": "inverse"}, 4, 0.755081 + 1 / 4),
        (PAPER, {"h2": "log"}, 4, 0.755081 + 1 / (1 + np.log(4))),
        (PAPER, {"h2_reading": "acl"}, 4, 0.755081 + 2 / (1 + np.exp(5))),
        # the printed formula has no value for an interval of 1; its limit from the right, 0
        ({3, 4, 5}, {"h2_reading": "printed"}, 1, 2 / (1 + np.exp(7))),
        # the stamp may start at birth, as in RaaS
        ({9}, {"stamp_start": "birth"}, 6, None),
        ({3}, {"stamp_start": "birth"}, 0, 0.0),
        # the first activation may not count
        ({9}, {"stamp_start": "before_birth"}, 7, None),
        ({9}, {"stamp_start": "first_activation"}, 0, None),
        # without an interval H1 has a limit: Δ = 0 at the last step, before it Δ > 0
        ({12}, LIMIT, 0, 1.0),
        ({9}, LIMIT, 0, 0.0),
        ({12}, {**LIMIT, "h1": "none"}, 0, 0.0),
        ({12}, {**LIMIT, "official": True}, 0, 2 / (1 + np.e)),
        (set(), {}, 0, 0.0),
    ],
)
def test_readings_by_hand(active, options, interval, expected):
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
