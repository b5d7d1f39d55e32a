"""Whole caches: an engine that shares no line with the reference passes, and planted bugs fail."""

from functools import lru_cache

import numpy as np
import pytest
from mutants import CACHE_BUGS, identifier, planted_engine
from sampling import sampled

from kvlab.reference.conformance import whole_cache
from kvlab.reference.conformance.checker import published, run_case
from kvlab.reference.conformance.implementation import Functions
from kvlab.reference.conformance.minimise import reductions
from kvlab.reference.conformance.report import ABOUT_GROUPS, Status
from kvlab.reference.streams import Source


@lru_cache
def cases():
    return [case for case in published() if case.operation == "whole_cache"]


GROUPS = sorted(group for group in ABOUT_GROUPS if group.startswith("cache_"))


def outcomes(functions, group):
    with np.errstate(all="ignore"):
        for case in cases():
            if case.group == group:
                yield run_case(functions, case)


FIRST_OF_EACH_GROUP = list({bug.target: bug for bug in reversed(CACHE_BUGS)}.values())


@pytest.mark.parametrize("bug", sampled(CACHE_BUGS, FIRST_OF_EACH_GROUP), ids=identifier)
def test_the_kit_notices(bug):
    functions = Functions(planted_engine(bug).IMPLEMENTATIONS)
    assert any(each.status == Status.FAILED for each in outcomes(functions, bug.target))


@pytest.mark.parametrize("group", GROUPS)
def test_the_engine_without_a_bug_passes(group):
    functions = Functions(planted_engine(None).IMPLEMENTATIONS)
    found = {each.status for each in outcomes(functions, group)}
    assert Status.PASSED in found and Status.FAILED not in found


def replayed(method, budget, calls, block_size=None):
    config = whole_cache.model_in(str(whole_cache.MODEL)).config
    inputs = {
        "tokens": Source("property").integers(1, config.vocab_size, 1, sum(calls)),
        "padding": np.zeros(1, dtype=int),
        "calls": np.array(calls),
        "continues": np.zeros((len(calls), 1), dtype=int),
    }
    parameters = {
        **{"model": str(whole_cache.MODEL), "budget": budget, "block_size": block_size},
        **dict.fromkeys(("softcap", "sliding_window")),
    }
    runner = whole_cache.runner_of(inputs, parameters, method)
    return whole_cache.replay(runner, inputs, parameters), runner, inputs


def test_a_budget_above_the_length_is_the_full_cache():
    full, _, _ = replayed("full", None, (12, 1, 1, 1))
    for method in ("h2o@recent=4", "streaming_llm@sinks=2", "tova"):
        found, _, _ = replayed(method, 15, (12, 1, 1, 1))
        np.testing.assert_array_equal(found.logits, full.logits)
        np.testing.assert_array_equal(found.kept, full.kept)


def test_chunks_are_one_shot_where_nothing_is_evicted_in_between():
    for method, budget in (("full", None), ("snapkv@window=4,kernel=3", 6)):
        whole, _, _ = replayed(method, budget, (12, 1, 1))
        for size in (1, 3, 5, 11):
            found, _, _ = replayed(method, budget, (12, 1, 1), block_size=size)
            np.testing.assert_allclose(found.logits, whole.logits, atol=1e-9)
            np.testing.assert_array_equal(found.kept, whole.kept)


def test_an_evicted_prefix_is_dense_attention_over_the_suffix_with_true_positions():
    budget, prompt = 7, 12
    found, runner, inputs = replayed("streaming_llm@sinks=0", budget, (prompt, 1))
    tokens, store = inputs["tokens"][0], {}

    def attend(layer, queries, keys, values):
        old_keys, old_values = store.get(layer, (keys[:, :0], values[:, :0]))
        keys, values = (np.concatenate(x, axis=1) for x in ((old_keys, keys), (old_values, values)))
        store[layer] = keys, values
        n, m, rho = keys.shape[1], queries.shape[1], len(queries) // len(keys)
        rows = np.arange(n - m, n)[:, None]
        seen = np.arange(n) <= rows
        if m == 1:  # the query after the prompt sees the last entries of the prompt, and itself
            seen &= np.arange(n) >= prompt - budget
        logits = queries @ np.repeat(keys, rho, axis=0).swapaxes(1, 2) / np.sqrt(keys.shape[2])
        weights = np.exp(np.where(seen, logits, -np.inf))
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights @ np.repeat(values, rho, axis=0)

    runner.model.forward(tokens[:prompt], 0, attend)
    after = runner.model.forward(tokens[prompt:], prompt, attend)[-1]
    np.testing.assert_allclose(found.logits[1, 0], after, atol=1e-9)
    assert found.kept[0, 0].all(axis=(0, 1)).nonzero()[0].tolist() == [*range(5, 12)]


def test_reductions_are_shorter_streams():
    case = next(case for case in cases() if case.group == "cache_budgets")
    smaller = next(iter(reductions(case)))
    assert smaller.inputs["tokens"].shape[1] < case.inputs["tokens"].shape[1]
    assert smaller.inputs["calls"].sum() == smaller.inputs["tokens"].shape[1]


def test_half_precision_is_not_tested():
    functions = Functions(planted_engine(None).IMPLEMENTATIONS, precision="float16")
    outcome = run_case(functions, cases()[0])
    assert outcome.status == Status.NOT_TESTED and "float16" in outcome.reason
