"""What the design promises of every method, as properties over random streams."""

from itertools import pairwise

import numpy as np
import pytest
from build import run, stream
from cases import BUDGETED, HOLDS_BUDGET_ALWAYS, QUANTIZING, RANDOM, SELF_SIZED
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import EXACT, FLOAT64

from kvlab.reference import methods
from kvlab.reference.attention import attend, visible

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from([4, 8]))
QUICK = settings(max_examples=8, deadline=None)


def policy_for(spec: str, budget: int = 9):
    return methods.get(spec, budget if spec in BUDGETED else None)


def dense_output(queries, keys, values, present, first, last):
    """Attention of a block over everything seen, with the entries that are gone masked out."""
    G = len(keys)
    seen = np.tile(np.arange(last), (G, 1))
    mask = visible(np.arange(first, last), seen)
    for g in range(G):
        mask[g] &= np.isin(np.arange(last), present[g])
    return attend(queries[:, :, first:last], keys[:, :last], values[:, :last], mask)[0]


@pytest.mark.parametrize("spec", BUDGETED + SELF_SIZED)
@QUICK
@given(
    shape=SHAPES,
    seed=st.integers(0, 2**32 - 1),
    prompt=st.integers(0, 14),
    block=st.sampled_from([None, 1, 4]),
)
def test_output_equals_dense_attention_with_evicted_entries_masked(
    spec, shape, seed, prompt, block
):
    G, rho, d = shape
    queries, keys, values = stream(np.random.default_rng(seed), G, rho, d, prompt + 16)
    for result in run(policy_for(spec), queries, keys, values, prompt, block):
        seen, clock = result.seen, result.seen.clock
        first, last = clock.seen - clock.block, clock.seen
        dense = dense_output(queries, keys, values, seen.positions, first, last)
        np.testing.assert_allclose(result.output, dense, rtol=0, atol=FLOAT64)


@pytest.mark.parametrize("spec", BUDGETED + SELF_SIZED[1:])
def test_the_streams_of_these_tests_do_evict(spec):
    queries, keys, values = stream(np.random.default_rng(0), 2, 2, 4, 30)
    last = run(policy_for(spec), queries, keys, values, prompt=14)[-1]
    assert last.seen.positions.shape[1] < 30


@pytest.mark.parametrize("spec", BUDGETED + SELF_SIZED + QUANTIZING)
@QUICK
@given(shape=SHAPES, seed=st.integers(0, 2**32 - 1), prompt=st.integers(0, 14))
def test_keep_sets_are_ascending_in_range_and_positions_survive(spec, shape, seed, prompt):
    G, rho, d = shape
    queries, keys, values = stream(np.random.default_rng(seed), G, rho, d, prompt + 16)
    for result in run(policy_for(spec), queries, keys, values, prompt, block=5):
        n = result.seen.positions.shape[1]
        if result.keep is not None:
            assert (np.diff(result.keep, axis=1) > 0).all()
            assert result.keep.min(initial=0) >= 0 and result.keep.max(initial=0) < n
            survivors = np.take_along_axis(result.seen.positions, result.keep, axis=1)
            np.testing.assert_array_equal(result.cache.positions, survivors)
        assert (np.diff(result.cache.positions, axis=1) > 0).all()
        for name, array in result.cache.state.entries.items():
            assert array.shape[:2] == result.cache.positions.shape, name


@pytest.mark.parametrize("spec", BUDGETED)
@QUICK
@given(seed=st.integers(0, 2**32 - 1), prompt=st.integers(0, 20), budget=st.integers(6, 18))
def test_a_due_step_leaves_at_most_the_budget(spec, seed, prompt, budget):
    queries, keys, values = stream(np.random.default_rng(seed), 2, 2, 4, prompt + 20)
    for result in run(policy_for(spec, budget), queries, keys, values, prompt, block=7):
        n = result.seen.positions.shape[1]
        if result.keep is not None:
            assert len(result.cache) == min(n, budget)
        elif spec in HOLDS_BUDGET_ALWAYS:
            pytest.fail("a method that holds its budget always was not due")


@pytest.mark.parametrize("spec", BUDGETED)
@QUICK
@given(shape=SHAPES, seed=st.integers(0, 2**32 - 1), prompt=st.integers(0, 12))
def test_a_budget_of_the_whole_length_changes_nothing(spec, shape, seed, prompt):
    G, rho, d = shape
    queries, keys, values = stream(np.random.default_rng(seed), G, rho, d, prompt + 12)
    full = run(methods.get("full"), queries, keys, values, prompt)
    same = run(policy_for(spec, budget=prompt + 12), queries, keys, values, prompt)
    for one, other in zip(full, same, strict=True):
        np.testing.assert_array_equal(one.output, other.output)
        np.testing.assert_array_equal(one.cache.positions, other.cache.positions)


@pytest.mark.parametrize("spec", [s for s in BUDGETED + SELF_SIZED if s not in RANDOM])
@QUICK
@given(seed=st.integers(0, 2**32 - 1))
def test_reordering_heads_commutes(spec, seed):
    rng = np.random.default_rng(seed)
    queries, keys, values = stream(rng, 3, 2, 4, 26)
    order = rng.permutation(3)
    plain = run(policy_for(spec), queries, keys, values, prompt=12, block=4)
    turned = run(policy_for(spec), queries[order], keys[order], values[order], 12, 4)
    for one, other in zip(plain, turned, strict=True):
        np.testing.assert_array_equal(one.cache.positions[order], other.cache.positions)
        np.testing.assert_allclose(one.output[order], other.output, rtol=0, atol=FLOAT64)


@pytest.mark.parametrize("spec", BUDGETED + SELF_SIZED + QUANTIZING)
def test_a_failing_step_leaves_the_cache_as_it_was(spec):
    from dataclasses import replace

    from kvlab.reference.policy import Block, Clock, step

    queries, keys, values = stream(np.random.default_rng(3), 2, 2, 4, 21)
    last = run(policy_for(spec), queries[:, :, :20], keys[:, :20], values[:, :20], 8)[-1]
    before = [last.cache.keys.read().copy(), last.cache.positions.copy()]
    block = Block(
        Clock(21, 1, 8), 0, queries[:, :, 20:], keys[:, 20:], values[:, 20:], np.full(21, 0.5)
    )
    broken = replace(block, values=np.full_like(block.values, np.nan))
    with pytest.raises(ValueError, match="values must be finite"):
        step(policy_for(spec), last.cache, broken)
    np.testing.assert_array_equal(last.cache.keys.read(), before[0])
    np.testing.assert_array_equal(last.cache.positions, before[1])
    assert len(step(policy_for(spec), last.cache, block).cache) >= 1


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


def test_the_comparison_can_fail():
    queries, keys, values = stream(np.random.default_rng(9), 1, 1, 4, 12)
    result = run(methods.get("tova", 4), queries, keys, values, 0)[-1]
    everything = np.arange(12)[None]
    dense = dense_output(queries, keys, values, everything, 11, 12)
    assert np.abs(dense - result.output).max() > EXACT + 1e-3
