"""What the design promises of every method, as properties over random streams."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from build import run, stream
from cases import BUDGETED, HOLDS_BUDGET_ALWAYS, QUANTIZING, RANDOM, SELF_SIZED
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import FLOAT64

from kvlab.reference import invariants as promised
from kvlab.reference import methods
from kvlab.reference.observation import Observation
from kvlab.reference.policy import Entries, Precision, Score
from kvlab.reference.streams import Source, Stream, random_stream, run_stream

SEEDS = st.integers(0, 2**32 - 1)
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from([4, 8]))
QUICK = settings(max_examples=8, deadline=None)


def policy_for(spec: str, budget: int = 9):
    return methods.get(spec, budget if spec in BUDGETED else None)


def make(spec: str):
    """How the promises build the policy; methods of their own size take no budget."""
    return lambda budget: policy_for(spec, budget)


def drawn(seed, shape=(2, 2, 4), prompt=12, generated=16, block=None) -> Stream:
    G, rho, d = shape
    return random_stream(Source("invariants", seed), G, rho, d, prompt, generated, block)


@pytest.mark.parametrize("spec", BUDGETED + SELF_SIZED)
@QUICK
@given(
    shape=SHAPES,
    seed=SEEDS,
    prompt=st.integers(0, 14),
    block=st.sampled_from([None, 1, 4]),
)
def test_output_equals_dense_attention_with_evicted_entries_masked(
    spec, shape, seed, prompt, block
):
    given_stream = drawn(seed, shape, prompt, block=block)
    assert not promised.output_is_dense_attention_without_the_evicted(
        make(spec), 9, given_stream, FLOAT64
    )


@pytest.mark.parametrize("spec", BUDGETED + SELF_SIZED[1:])
def test_the_streams_of_these_tests_do_evict(spec):
    queries, keys, values = stream(np.random.default_rng(0), 2, 2, 4, 30)
    last = run(policy_for(spec), queries, keys, values, prompt=14)[-1]
    assert last.seen.positions.shape[1] < 30


@pytest.mark.parametrize("spec", BUDGETED + SELF_SIZED + QUANTIZING)
@QUICK
@given(shape=SHAPES, seed=SEEDS, prompt=st.integers(0, 14))
def test_keep_sets_are_ascending_in_range_and_positions_survive(spec, shape, seed, prompt):
    assert not promised.keep_sets_are_ascending_and_entries_keep_their_positions(
        make(spec), 9, drawn(seed, shape, prompt, block=5)
    )


@pytest.mark.parametrize("spec", BUDGETED)
@QUICK
@given(seed=SEEDS, prompt=st.integers(0, 20), budget=st.integers(6, 18))
def test_a_due_step_leaves_at_most_the_budget(spec, seed, prompt, budget):
    given_stream = drawn(seed, prompt=prompt, generated=20, block=7)
    assert not promised.due_steps_leave_at_most_the_budget(make(spec), budget, given_stream)
    if spec in HOLDS_BUDGET_ALWAYS:
        results = run_stream(policy_for(spec, budget), given_stream)
        assert all(result.keep is not None for result in results)


@pytest.mark.parametrize("spec", BUDGETED)
@QUICK
@given(shape=SHAPES, seed=SEEDS, prompt=st.integers(0, 12))
def test_a_budget_of_the_whole_length_changes_nothing(spec, shape, seed, prompt):
    given_stream = drawn(seed, shape, prompt, generated=12)
    assert not promised.whole_length_changes_nothing(make(spec), 9, given_stream)
    full = run_stream(methods.get("full"), given_stream)
    same = run_stream(policy_for(spec, given_stream.tokens), given_stream)
    for one, other in zip(full, same, strict=True):
        np.testing.assert_array_equal(one.output, other.output)
        np.testing.assert_array_equal(one.cache.positions, other.cache.positions)


@pytest.mark.parametrize("spec", [s for s in BUDGETED + SELF_SIZED if s not in RANDOM])
@QUICK
@given(seed=SEEDS)
def test_reordering_heads_commutes(spec, seed):
    given_stream = drawn(seed, (3, 2, 4), generated=14, block=4)
    assert not promised.heads_may_be_reordered(make(spec), 9, given_stream, FLOAT64)


@pytest.mark.parametrize("spec", BUDGETED + SELF_SIZED + QUANTIZING)
def test_a_failing_step_leaves_the_cache_as_it_was(spec):
    given_stream = drawn(3, prompt=8, generated=13)
    assert not promised.failed_steps_change_nothing(make(spec), 9, given_stream)


@pytest.mark.parametrize("spec", QUANTIZING)
def test_precision_is_never_raised(spec):
    queries, keys, values = stream(np.random.default_rng(5), 2, 2, 8, 60)
    results = run(policy_for(spec), queries, keys, values, prompt=10)
    lowest: dict[tuple[int, int], int] = {}
    for result in results:
        bits = result.cache.keys.bits
        for (g, j), position in np.ndenumerate(result.cache.positions):
            key = (g, int(position))
            assert bits[g, j] <= lowest.get(key, 16)
            lowest[key] = int(bits[g, j])
    assert min(lowest.values()) < 16


@pytest.mark.parametrize("spec", QUANTIZING)
def test_the_bytes_of_quantised_entries_shrink(spec):
    queries, keys, values = stream(np.random.default_rng(6), 2, 2, 8, 60)
    cache = run(policy_for(spec), queries, keys, values, prompt=10)[-1].cache
    assert cache.nbytes < len(cache) * 2 * 2 * 8 * 2
    assert cache.nbytes - cache.payload_bytes > 0


def test_growth_is_what_the_schedules_allow():
    """LazyEviction never exceeds max(N0 + W, B + W), for every small N0, B, W."""
    queries, keys, values = stream(np.random.default_rng(7), 1, 1, 4, 40)
    for prompt in (0, 1, 5, 12):
        for budget in (4, 7, 10):
            for window in (1, 2, 4):
                policy = methods.get(f"lazy_eviction@window={window}", budget)
                results = run(policy, queries, keys, values, prompt)
                longest = max(result.seen.positions.shape[1] for result in results)
                assert longest <= max(prompt + window, budget + window)


def test_results_do_not_share_memory_with_their_past():
    queries, keys, values = stream(np.random.default_rng(8), 1, 1, 4, 20)
    for before, after in pairwise(run(methods.get("h2o", 6), queries, keys, values, 4)):
        assert not np.shares_memory(
            before.cache.state.entries["accumulated"], after.cache.state.entries["accumulated"]
        )


# --- the promises can be broken ------------------------------------------------------------------


@dataclass(frozen=True)
class Broken(Score):
    """TOVA's score with a mistake."""

    mistake: Callable[[np.ndarray, Observation], np.ndarray]

    def score(self, state, seen, candidates, room):
        return self.mistake(seen.attention[:, :, -1].mean(axis=1), seen)


@dataclass(frozen=True)
class OneMore(Entries):
    """A budget that is off by one."""

    def room(self, seen, safe):
        return super().room(seen, safe) + 1


class Ahead(Precision):
    """Keeps an entry twice and forgets the last."""

    def store(self, cache, seen, keep):
        return cache, np.concatenate([keep[:, :1], keep[:, :-1]], axis=1)


def tova(**changes):
    return lambda budget: replace(methods.get("tova", budget), **changes)


def one_more(budget):
    return replace(methods.get("tova", budget), budget=OneMore(budget))


def leaves_early(budget):
    return methods.get("tova", min(budget, 20))


class Loud(Score):
    """Needs finite values nowhere, and forgets to refuse them."""

    def score(self, state, seen, candidates, room):
        raise KeyError("nothing")


BROKEN = {
    "output is dense attention without the evicted": tova(evict_before_attend=True),
    "keep sets are ascending and entries keep their positions": tova(precision=Ahead()),
    "due steps leave at most the budget": one_more,
    "whole length changes nothing": leaves_early,
    "heads may be reordered": tova(
        score=Broken(lambda x, seen: x * (1 + np.arange(len(x))[:, None] * seen.positions))
    ),
    "failed steps change nothing": tova(score=Loud()),
}


@pytest.mark.parametrize("promise", promised.PROMISES)
def test_every_promise_can_be_broken(promise):
    kept = {each.promise: each.objection for each in promised.check_promises(BROKEN[promise])}
    assert kept[promise]


def test_every_promise_is_kept_by_a_method():
    assert not [each for each in promised.check_promises(tova()) if each.objection]


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="streams = 0 and budget = 9 must be at least 1"):
        promised.check_promises(tova(), streams=0)
