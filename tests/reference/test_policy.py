from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.attention import attend, group_heads, logits, softmax, visible
from kvlab.reference.cache import Column
from kvlab.reference.observation import Clock
from kvlab.reference.policy import (
    AfterPrefill,
    AfterPrefillThenEverySeen,
    Entries,
    EveryBlock,
    EveryDecode,
    EveryGenerated,
    Never,
    Nobody,
    Policy,
    Score,
)
from kvlab.reference.step import Block, apply, attend_survivors, empty_cache, look, step
from support.build import stream
from support.refused import refused
from support.tables import cases
from support.tolerances import FLOAT64


def block(seen=4, m=4, prompt=4, G=2, rho=2, d=4):
    queries, keys, values = stream(np.random.default_rng(0), G, rho, d, m)
    return Block(Clock(seen, m, prompt), 0, queries, keys, values, np.full(seen, np.nan))


def test_causal_attention_by_hand():
    """Keys 0 and ½ ln 3, d = 4: the first token sees itself, the second logits 0 and 2 ln 3/√4."""
    queries, keys = np.ones((1, 1, 2, 4)), np.log([[[1.0] * 4, [np.sqrt(3)] * 4]])
    values = np.array([[[2.0] * 4, [6.0] * 4]])
    output, attention = attend(queries, keys, values, visible(np.arange(2), np.arange(2)[None]))
    np.testing.assert_allclose(attention, [[[[1, 0], [1 / 4, 3 / 4]]]], atol=FLOAT64)
    np.testing.assert_allclose(output[0, 0], [[2] * 4, [5] * 4], atol=FLOAT64)


def test_logits_are_scaled_then_capped_by_hand():
    """q·k = 4 in four channels: 4/√4 = 2, and within ±1 tanh 2."""
    found = logits(np.ones((1, 1, 1, 4)), np.ones((1, 1, 4)), softcap=1.0)
    np.testing.assert_allclose(found, np.tanh(2.0), atol=FLOAT64)


def test_query_heads_are_grouped_in_order():
    heads = np.arange(6.0).reshape(6, 1, 1)
    assert group_heads(heads, 2).ravel().tolist() == [0, 1, 2, 3, 4, 5]
    assert group_heads(heads, 2).shape == (2, 3, 1, 1)
    with pytest.raises(ValueError, match="query heads = 6 must be a multiple of kv_heads = 4"):
        group_heads(heads, 4)


def test_softmax_survives_extreme_logits():
    weights = softmax(np.array([1e4, 1e4 - np.log(3), -1e4]))
    np.testing.assert_allclose(weights, [0.75, 0.25, 0.0], atol=FLOAT64)


@refused(__file__)
def test_softmax_refuses(bad, message):
    with pytest.raises(ValueError, match=message):
        eval(bad)


def test_another_keep_set_than_the_policys_is_applied_whole():
    policy = methods.get("caote:tova@evict_before_attend=true", 2)
    looked = look(policy, empty_cache(policy, 2, 4), block())
    keep = np.array([[0, 1], [1, 2]])
    assert (looked.decision.keep != keep).any()
    result = apply(policy, looked, keep)
    np.testing.assert_array_equal(result.output, attend_survivors(looked.seen, keep))
    np.testing.assert_array_equal(result.cache.positions, keep)


def due(schedule, clocks):
    return [clock.seen for clock in clocks if schedule.due(clock)]


def decoding(prompt, tokens, m=1):
    return [Clock(prompt + g, m, prompt) for g in range(m, tokens + 1, m)]


def test_schedules_by_hand():
    prefill = [Clock(4, 4, 10), Clock(8, 4, 10), Clock(10, 2, 10)]
    clocks = prefill + decoding(10, 10)
    assert due(EveryBlock(), clocks) == [4, 8, 10, *range(11, 21)]
    assert due(EveryBlock(4), clocks) == [4, 8, 10, 14, 18]
    assert due(EveryDecode(4), clocks) == [14, 18]
    assert due(AfterPrefillThenEverySeen(8), clocks) == [10, 16]
    assert due(EveryGenerated(4, 2), clocks) == [16, 20]
    assert due(EveryDecode(4), decoding(0, 12, m=3)) == [6, 9, 12]
    assert due(EveryGenerated(4, 2), decoding(0, 12, m=3)) == [6, 12]


@refused(__file__, "blocks")
def test_blocks_that_do_not_fit_are_refused(bad, message):
    broken = block()
    for name, value in eval(f"dict({bad})").items():
        object.__setattr__(broken, name, value)  # past the type check of the tests
    with pytest.raises(ValueError, match=message):
        step(policy := methods.get("h2o", 4), empty_cache(policy, 2, 4), broken)


@cases(__file__, "blocks_that_do_not_fit_a_cache_are_refused", "spec heads message")
def test_blocks_that_do_not_fit_a_cache_are_refused(spec, heads, message):
    policy = methods.get(spec, 8)
    with pytest.raises(ValueError, match=message):
        step(policy, empty_cache(policy, heads, 4), block())


def untouched(state):
    return {"largest": state.entries["largest"]}


@refused(__file__, "given")
def test_what_a_score_gives_is_checked(bad, message):
    @dataclass(frozen=True)
    class LargestAttention(Score):
        wrote: Any = untouched
        scores: Any = np.copy

        columns = {"largest": Column("largest attention so far")}

        def observe(self, state, seen) -> Any:
            columns = self.wrote(state)
            return None if columns is None else state.with_entries(**columns)

        def score(self, state, seen, candidates, room):
            return self.scores(state.entries["largest"])

    right, wrong = (
        Policy("mine", each, EveryBlock(), Nobody(), Entries(3))
        for each in (LargestAttention(), LargestAttention(**eval(f"dict({bad})")))
    )
    cache = empty_cache(right, 2, 4)
    assert len(step(right, cache, block()).cache) == 3
    with pytest.raises(ValueError, match=message):
        step(wrong, cache, block())
    assert len(cache) == 0


SCHEDULES = {methods.get(each.spec, each.budget).schedule for each in methods.examples()}
ENDS = {Never(): 3, AfterPrefill(): 7}
"""Tokens seen when these end: nothing is ever due, or only at the end of the prompt of 7."""


@pytest.mark.parametrize("schedule", sorted(SCHEDULES, key=repr), ids=repr)
@pytest.mark.parametrize("m", [1, 5])
def test_a_schedule_that_has_ended_is_never_due(schedule, m):
    clocks = [Clock(3, 3, 7), Clock(7, 4, 7), *(Clock(t, m, 7) for t in range(7 + m, 300, m))]
    ended = [clock.seen for clock in clocks if schedule.ended(clock)]
    due = [clock.seen for clock in clocks if schedule.due(clock)]
    assert (due[-1:] > [250]) == (schedule not in ENDS)
    assert ended == [clock.seen for clock in clocks if clock.seen >= ENDS.get(schedule, 300)]
    assert not ended or due in ([], ended[:1])
