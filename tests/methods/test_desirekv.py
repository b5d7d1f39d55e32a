from dataclasses import replace

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.cache import LayerCache, State
from kvlab.reference.conformance.made import recording
from kvlab.reference.generate import choose
from kvlab.reference.methods.desirekv import (
    DesireKV,
    Importance,
    decision_window,
    doubtful,
    outlier_score,
    quantize_entries,
    sensitive,
    sensitivity,
)
from kvlab.reference.step import empty_cache
from kvlab.reference.streams import Source, random_stream
from support.build import looking, observation, run, stream
from support.tables import cases
from support.tolerances import FLOAT64

BLOCK = np.array([-1, -0.5, 0, 0, 0.5, 1, 0, 10.0])


def test_outlier_score_by_hand():
    """Sorted −1 −.5 0 0 0 .5 1 10: Q1 = −.125, Q3 = .625, IQR = .75, fences −1.25 and 1.75.
    The outlier is 10, the mean 1.25, the score 8.75."""
    assert outlier_score(BLOCK) == pytest.approx(8.75, abs=FLOAT64)
    assert outlier_score(BLOCK, over="block") == pytest.approx(8.75 / 8, abs=FLOAT64)
    at_the_fence = np.array([-1.5, 0, 0, 0, 1, 1, 1, 2.5])  # Q1 = 0, Q3 = 1
    assert outlier_score(at_the_fence) == 0


def test_sensitivity_by_hand():
    """Two blocks of 8 per key. Token 0: 8.75 and 0, mean 4.375. Token 1: outlier-free, 0.
    Token 2: 8.75 twice. Relative to the largest: ½, 0, 1."""
    calm = np.arange(8.0)
    keys = np.array([[[*BLOCK, *calm], [*calm, *calm], [*BLOCK, *BLOCK]]])
    relative = sensitivity(keys / 10, np.ones((1, 3), dtype=bool), group=8)
    np.testing.assert_allclose(relative, [0.5, 0.0, 1.0], atol=FLOAT64)
    # a second KV head, 0 and 8.75 for token 2: 8.75/4 and 26.25/4 over both
    other = np.array([[*calm, *calm], [*calm, *calm], [*calm, *BLOCK]])
    relative = sensitivity(np.stack([keys[0], other]), np.ones((2, 3), dtype=bool), group=8)
    np.testing.assert_allclose(relative, [1 / 3, 0.0, 1.0], atol=FLOAT64)
    np.testing.assert_array_equal(sensitivity(keys[:, 1:2], np.ones((1, 1), bool), 8), [0.0])
    seen, all_three = observation([[1 / 3] * 3], keys=keys), np.ones((1, 3), dtype=bool)
    above = sensitive(
        DesireKV(group=8, sensitivity_threshold=0.5), State(), seen, all_three, ~all_three
    )
    assert above.tolist() == [[False, False, True]]


def test_equal_keys_are_not_sensitive():
    """Each has an outlier and relative sensitivity 1, so the median is 1, and none is above it."""
    keys, window = np.tile(BLOCK, (1, 4, 1)), np.ones((1, 4), dtype=bool)
    assert sensitivity(keys, window, group=8).tolist() == [1.0] * 4
    seen = observation([[1 / 4] * 4], keys=keys)
    assert not sensitive(DesireKV(group=8), State(), seen, window, ~window).any()


@cases(__file__, "sensitive_is_what_is_above_the_windows_quantile", "options expected")
def test_sensitive_is_what_is_above_the_windows_quantile(options, expected):
    """Keys of 4, 3, 2, 1, 0 times the same outlier: relative to the largest 1, ¾, ½, ¼, 0. Keys of
    40 times it are not in the window."""
    window = np.array([[True] * 5 + [False] * 5])
    keys = np.outer([4.0, 3, 2, 1, 0, *[40.0] * 5], BLOCK)[None]
    seen = observation([[1 / 10] * 10], keys=keys)
    marks = sensitive(DesireKV(group=8, **options), State(), seen, window, ~window)
    assert np.flatnonzero(marks[0, :5]).tolist() == expected


def test_the_ablations_draw_apart():
    """Of 64 entries, those whose draw is above ½ are others for importance than for sensitivity,
    and others at the next event."""
    options = DesireKV(sensitivity="random", sensitivity_threshold=0.5)
    seen, everything = observation([[1 / 64] * 64]), np.ones((1, 64), dtype=bool)
    drawn = sensitive(options, State(), seen, everything, ~everything)
    draw = methods.get("desirekv-i").score.score
    later = replace(seen, clock=replace(seen.clock, seen=seen.clock.seen + 1))
    now, then = (draw(State(), each, everything, 32) > 0.5 for each in (seen, later))
    for one, other in ((now, drawn), (now, then)):
        assert 16 < one.sum() < 48 and 16 < other.sum() < 48 and 16 < (one != other).sum() < 48


def test_no_entry_is_raised_to_more_bits():
    """At a second event, under ``scope=all``, an entry of 4 bits may be found sensitive."""
    x = np.random.default_rng(0).normal(size=(1, 3, 8))
    cache = LayerCache.empty(1, 8, {}).append(x, x, np.arange(3), {})
    first, every = np.array([[True, False, False]]), np.ones((1, 3), dtype=bool)
    twice = quantize_entries(quantize_entries(cache, first, 4, 4, 8), every, 8, 8, 8)
    assert twice.keys.bits.tolist() == twice.values.bits.tolist() == [[4, 8, 8]]


def test_a_short_last_block_uses_its_own_length():
    """d = 10, g = 8: the block (0, 4) has mean 2 and no outlier."""
    keys = np.array([[[*BLOCK, 0.0, 4.0]]])
    assert outlier_score(keys[0, 0, 8:]) == 0.0
    np.testing.assert_array_equal(sensitivity(keys, np.ones((1, 1), bool), 8), [1.0])


def test_the_token_after_a_doubt_is_marked():
    """Confidence of tokens 2..5: .9 .2 – .1, λ = .5: token 4, which was given, follows token 3,
    and what follows token 5 is not decided about. Token 5 follows a given one, which has none. At λ
    itself a token is confident enough."""
    confidence = np.array([np.nan, np.nan, 0.9, 0.2, np.nan, 0.1, 0.95])
    seen = observation([[1 / 7] * 7], prompt=2, confidence=confidence)
    window = np.array([[False, False, True, True, True, True, False]])
    for options, expected in (
        ({"doubt_threshold": 0.5}, [4]),
        ({"doubt_threshold": 0.2}, []),
        ({"doubt_threshold": 0.5, "doubt_shift": 0}, [3, 5]),
        ({"doubt_quantile": 0.75, "doubt_shift": 0}, [3, 5]),
        ({"doubt_quantile": 0.5, "doubt_shift": 0}, [5]),  # below .2; .95 is not in the window
    ):
        marks = doubtful(DesireKV(**options), seen, window)
        assert np.flatnonzero(marks[0]).tolist() == expected
    assert not doubtful(DesireKV(protection="none"), seen, window).any()


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_confidence_is_the_largest_probability_at_temperature_1(temperature):
    _, confidence = choose(np.log([0.2, 0.5, 0.3]), temperature, np.random.default_rng(0))
    assert confidence == pytest.approx(0.5, abs=FLOAT64)


@cases(__file__, "importance_by_hand", "options expected")
def test_importance_by_hand(options, expected):
    """Prompt 1, P = 2, R = 1; one of four heads pays 9 3 1 1, the others 9 1 1 1. The window is
    entries 1 and 2; pooled are these two and zeros beyond."""
    score = methods.get(f"desirekv@interval=2,selector=1,{options}").score
    plain = [[9, 1, 1, 1]]
    seen = looking([[[[9, 3, 1, 1]], plain], [plain, plain]], prompt=1)
    found = score.score(score.observe(State(), seen), seen, seen.positions > 0, 1)
    np.testing.assert_allclose(found[:, 1:3], [expected] * 2, atol=FLOAT64)


@cases(__file__, "the_window_holds_the_p_tokens_before_the_selector", "block seen scope first")
def test_the_window_holds_the_p_tokens_before_the_selector(block, seen, scope, first):
    """Prompt 3, P = 8, R = 4."""
    looked = observation(np.full((block, seen), 1 / seen), prompt=3)
    window = decision_window(DesireKV(interval=8, selector=4, scope=scope), looked)
    assert np.flatnonzero(window[0]).tolist() == list(range(first, 19))


def first_event(**options):
    queries, keys, values = stream(np.random.default_rng(28), 2, 2, 8, 2 + 18)
    policy = methods.get("desirekv@interval=16,selector=2,group=8", **options)
    return run(policy, queries, keys, values, prompt=2)[-1]


def test_quadrants_of_one_window():
    """16 tokens: 8 important. Q1, Q4 evicted; Q2 at 4 bits; Q3 at 8. Without doubt 8 + 4 kept."""
    result = first_event(protection="none")
    bits, keys = result.cache.keys.bits, stream(np.random.default_rng(28), 2, 2, 8, 2 + 18)[1]
    assert len(result.cache) == 2 + 8 + 2
    assert (bits[:, [0, 1, -2, -1]] == 16).all()
    relative = sensitivity(keys[:, 2:-2], np.ones((2, 16), dtype=bool), 8)
    high = (relative > np.median(relative))[result.cache.positions[0, 2:-2] - 2]
    assert 0 < high.sum() < 8 and bits[0, 2:-2].tolist() == np.where(high, 8, 4).tolist()
    assert (bits == bits[0]).all() and (result.cache.values.bits == bits).all()
    apart = first_event(protection="none", value_bits=2).cache
    assert (apart.keys.bits == bits).all() and (apart.values.bits[:, 2:-2] == 2).all()


def test_doubtful_tokens_are_spared_and_get_high_bits():
    """The confidences that ``build.run`` draws: every token after a value below the window's
    quantile is there, at 8 bits or more."""
    result = first_event(doubt_quantile=0.3)
    confidence = np.random.default_rng(0).random(20)
    confidence[:2] = np.nan
    before = confidence[1:17]
    doubtful = np.flatnonzero(before < np.nanquantile(before, 0.3)) + 2
    assert len(doubtful) >= 4
    kept_bits = dict(zip(result.cache.positions[0], result.cache.keys.bits[0], strict=True))
    assert all(kept_bits[position] == 8 for position in doubtful)


@pytest.mark.parametrize("protection", ["confidence", "none"])
def test_doubtful_tokens_take_the_places_of_the_least_important(protection):
    """Table 2: four of 16 tokens at full precision, all others at 4 bits. Two of the four are those
    that follow the two least confident; without confidence all four have the most attention."""
    result = first_event(
        importance_quantile=0, sensitivity="attention", sensitivity_quantile=0.75, high_bits=16,
        doubt_quantile=0.1, protection=protection,
    )  # fmt: skip
    bits = result.cache.keys.bits[0, 2:-2].tolist()
    window = (result.seen.positions >= 2) & (result.seen.positions < 18)
    score = Importance(DesireKV(interval=16, selector=2))
    attention = score.score(result.cache.state, result.seen, window, 0)[0, 2:-2]
    by_attention = np.argsort(-attention).tolist()
    confidence = np.random.default_rng(0).random(20)  # those that ``build.run`` draws
    doubted = (np.argsort(confidence[2:17])[:2] + 1).tolist()
    first = doubted if protection == "confidence" else []
    others = [token for token in by_attention if token not in first]
    high = first + others[: 4 - len(first)]
    assert bits == [16 if token in high else 4 for token in range(16)]
    assert (sorted(high) == sorted(by_attention[:4])) == (protection == "none")


def test_a_budget_needs_scope_all():
    queries, keys, values = stream(np.random.default_rng(30), 2, 2, 8, 50)
    policy = methods.get("desirekv@interval=8,selector=2,scope=all", budget=16)
    due = [r for r in run(policy, queries, keys, values, prompt=4) if r.keep is not None]
    assert {len(r.cache) for r in due} <= {14, 16}
    assert len(due[-1].cache) == 16


@pytest.mark.parametrize("scope", ["window", "all"])
def test_an_event_whose_window_has_left_changes_nothing(scope):
    """Only tokens from 29 on are there; the events of P = 4, R = 2 decide about earlier ones."""
    late = replace(random_stream(Source("late", 0), 2, 1, 8, 1, 7), blocks=(1, 1, 3), first=29)
    policy = methods.get(f"desirekv@interval=4,selector=2,scope={scope}")
    noted = recording(policy, late.pieces(), empty_cache(policy, 2, 8))
    events = [event for event in noted if event.result.keep is not None]
    assert events
    for event in events:
        there = event.looked.seen.positions
        members = decision_window(policy.score.options, event.looked.seen)
        assert not members.any()
        assert np.array_equal(event.result.keep, np.tile(np.arange(there.shape[1]), (2, 1)))
