import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.streams import Stream, run_stream
from support.build import kept, nothing_yet, observation, observe_rows, stream
from support.tables import cases

ROWS = [[1.0], [0.7, 0.3], [0.1, 0.3, 0.6], [0.3, 0.1, 0.1, 0.5]]


def test_four_steps_by_hand():
    """α = .2. Step 1 stamps 0; step 2 stamps 0, 1; step 3 stamps 1, 2; step 4 stamps 0, 3.
    Last uses: 4, 3, 3, 4; with B = 3 entry 1 is evicted."""
    policy = methods.get("raas@threshold=0.2,pin_prompt=false", 3)
    state, seen = observe_rows(policy.score, ROWS)
    np.testing.assert_array_equal(state.entries["stamp"], [[4, 3, 3, 4]])
    assert kept(policy, state, seen) == [0, 2, 3]


def test_the_top_half_is_stamped_instead_of_a_threshold():
    """⌈n/2⌉ of each row: {0}; {0}, 1 is new; {2, 1}; {3, 0}. Stamps 4, 3, 3, 4."""
    policy = methods.get("raas@share=0.5,pin_prompt=false", 3)
    state, _ = observe_rows(policy.score, ROWS)
    np.testing.assert_array_equal(state.entries["stamp"], [[4, 3, 3, 4]])


@cases(__file__, "two_heads_and_two_tokens_at_once_by_hand", "options stamps")
def test_two_heads_and_two_tokens_at_once_by_hand(options, stamps):
    """After a prompt of one token and a step, two tokens: heads .6 .2 .2 and .1 .55 .35, then .1 .1
    .1 .7 of both."""
    last = [0.1, 0.1, 0.1, 0.7]
    seen = observation([[[[0.6, 0.2, 0.2, 0], last], [[0.1, 0.55, 0.35, 0], last]]], prompt=1)
    score = methods.get(f"raas@{options}", 4).score
    state = score.observe(nothing_yet(score, seen), seen)
    np.testing.assert_array_equal(state.entries["stamp"], [stamps])


def test_pages_are_stamped_whole_by_hand():
    """Pages of keys (3, −1), (1, −4), (0, 0); one best page is stamped, of a prompt of four tokens.
    Step 1, query 1: bounds 3, 1, 0; step 2, query −1: 1, 4, 0. The page being written is, too."""
    policy = methods.get("raas@page=2,pin_prompt=false", 5)
    assert policy.score.stamped_pages == 1
    attention = np.full((1, 1, 2, 6), 1 / 6)
    seen = observation(attention, keys=[3, -1, 1, -4, 0, 0], queries=[1, -1], prompt=4)
    state = policy.score.observe(nothing_yet(policy.score, seen), seen)
    np.testing.assert_array_equal(state.entries["stamp"], [[1, 1, 2, 2, 2, 2]])


def test_a_token_does_not_read_later_tokens_of_its_block_by_hand():
    """Pages of keys (2, 0, 0) and (1, 1, 5), one best page, three tokens: query −1 finds bounds 0
    and −1; query 1 finds 2 and 1, since the 5 comes later; then 2 and 5."""
    policy = methods.get("raas@page=3,pin_prompt=false", 6)
    seen = observation(
        np.full((1, 1, 3, 6), 1 / 6), keys=[2, 0, 0, 1, 1, 5], queries=[-1, 1, 1], prompt=3
    )
    state = policy.score.observe(nothing_yet(policy.score, seen), seen)
    np.testing.assert_array_equal(state.entries["stamp"], [[2, 2, 2, 3, 3, 3]])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spec", ["raas@page=8", "raas@threshold=0.1", "raas@share=0.3"])
def test_a_block_is_stamped_as_its_tokens_one_by_one(spec, seed):
    """Nothing is evicted meanwhile. The block is seven of twelve generated tokens."""
    given = stream(np.random.default_rng(seed), 2, 2, 3, 22)
    policy, stamps = methods.get(spec, 24), []
    for lengths in ((10, *[1] * 12), (10, 1, 7, *[1] * 4)):
        whole = Stream(*given, np.full(22, np.nan), 10, lengths)
        *_, last = run_stream(policy, whole)
        stamps.append(last.cache.state.entries["stamp"])
    np.testing.assert_array_equal(*stamps)
    assert len(np.unique(stamps[0])) > 1


def test_page_bound_by_hand():
    """Keys (1, −2) and (3, 1), query (2, −1): kmax = (3, 1), kmin = (1, −2).
    Σ max(q·kmax, q·kmin) = max(6, 2) + max(−1, 2) = 8 ≥ every q·k (4 and 5). Of a second query
    head, (1, 0), it is 3."""
    attention, keys = np.full((1, 2, 1, 2), 0.5), [[1, -2], [3, 1]]
    seen = observation(attention, keys=keys, queries=[[2, -1], [1, 0]])
    policy = methods.get("raas@page=2,pin_prompt=false", 4)
    assert policy.score.bound(seen, 0, 0, np.array([True, True])) == 8
