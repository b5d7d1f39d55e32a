"""Whole caches: an engine that shares no line with the reference passes, and planted bugs fail."""

from functools import lru_cache

import numpy as np
import pytest
from mutants import CACHE_BUGS, identifier, planted_engine
from sampling import sampled

from kvlab.reference.conformance import Status, check, published
from kvlab.reference.conformance.checker import run_case
from kvlab.reference.conformance.implementation import Functions
from kvlab.reference.conformance.report import ABOUT_GROUPS
from kvlab.reference.conformance.vectors import MODEL
from kvlab.reference.conformance.whole_cache import model_in, whole_cache
from kvlab.reference.streams import Source


@lru_cache
def cases(group):
    return [each for each in published() if each.group == group and each.operation == "whole_cache"]


GROUPS = sorted(group for group in ABOUT_GROUPS if group.startswith("cache_"))


def statuses(bug, group):
    functions = Functions(planted_engine(bug).IMPLEMENTATIONS)
    with np.errstate(all="ignore"):
        for case in cases(group):
            yield run_case(functions, case).status


FIRST_OF_EACH_GROUP = list({bug.target: bug for bug in reversed(CACHE_BUGS)}.values())


@pytest.mark.parametrize("bug", sampled(CACHE_BUGS, FIRST_OF_EACH_GROUP), ids=identifier)
def test_the_kit_notices(bug):
    assert Status.FAILED in statuses(bug, bug.target)


@pytest.mark.parametrize("group", GROUPS)
def test_the_engine_without_a_bug_passes(group):
    found = {*statuses(None, group)}
    assert Status.PASSED in found and Status.FAILED not in found


def inputs(calls):
    return {
        "tokens": Source("property").integers(
            1, model_in(str(MODEL)).config.vocab_size, 1, sum(calls)
        ),
        "padding": np.zeros(1, dtype=int),
        "calls": np.array(calls),
        "continues": np.zeros((len(calls), 1), dtype=int),
    }


def answered(method, budget, calls, block_size=None):
    variant = dict.fromkeys(("softcap", "sliding_window"))
    found = whole_cache(
        method=method,
        budget=budget,
        model=str(MODEL),
        block_size=block_size,
        **inputs(calls),
        **variant,
    )
    return found["logits"].value, found["kept"].value


def test_a_budget_above_the_length_is_the_full_cache():
    full, everything = answered("full", None, (12, 1, 1, 1))
    for method in ("h2o@recent=4", "streaming_llm@sinks=2", "tova"):
        logits, kept = answered(method, 15, (12, 1, 1, 1))
        np.testing.assert_array_equal(logits, full)
        np.testing.assert_array_equal(kept, everything)


def test_chunks_are_one_shot_where_nothing_is_evicted_in_between():
    for method, budget in (("full", None), ("snapkv@window=4,kernel=3", 6)):
        whole, everything = answered(method, budget, (12, 1, 1))
        for size in (1, 3, 5, 11):
            logits, kept = answered(method, budget, (12, 1, 1), block_size=size)
            np.testing.assert_allclose(logits, whole, atol=1e-9)
            np.testing.assert_array_equal(kept, everything)


def test_an_evicted_prefix_is_dense_attention_over_the_suffix_with_true_positions():
    budget, prompt = 7, 12
    logits, kept = answered("streaming_llm@sinks=0", budget, (prompt, 1))
    tokens, store = inputs((prompt, 1))["tokens"][0], {}

    def attend(layer, queries, keys, values):
        old_keys, old_values = store.get(layer, (keys[:, :0], values[:, :0]))
        keys, values = (np.concatenate(x, axis=1) for x in ((old_keys, keys), (old_values, values)))
        store[layer] = keys, values
        n, m, rho = keys.shape[1], queries.shape[1], len(queries) // len(keys)
        rows = np.arange(n - m, n)[:, None]
        seen = np.arange(n) <= rows
        if m == 1:  # the query after the prompt sees the last entries of the prompt, and itself
            seen &= np.arange(n) >= prompt - budget
        products = queries @ np.repeat(keys, rho, axis=0).swapaxes(1, 2) / np.sqrt(keys.shape[2])
        weights = np.exp(np.where(seen, products, -np.inf))
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights @ np.repeat(values, rho, axis=0)

    model = model_in(str(MODEL))
    model.forward(tokens[:prompt], 0, attend)
    after = model.forward(tokens[prompt:], prompt, attend)[-1]
    np.testing.assert_allclose(logits[1, 0], after, atol=1e-9)
    assert kept[0, 0].all(axis=(0, 1)).nonzero()[0].tolist() == [*range(5, 12)]


class Late:
    """An engine that is wrong from the third call on."""

    precision = "float32"

    def offers(self, target):
        return True

    def answer(self, case):
        kept = case.expected["kept"].value.copy()
        kept[2:] = ~kept[2:]
        return {"kept": kept, "logits": case.expected["logits"].value}


def test_the_smallest_failure_has_the_calls_up_to_the_first_wrong_one():
    failure = check("h2o.whole_cache", Late(), groups=["cache_budgets"]).failures()[0]
    assert failure.smallest is not None
    calls, tokens = (failure.smallest.case.inputs[name] for name in ("calls", "tokens"))
    assert len(calls) == 3 and tokens.shape[1] == calls.sum()
    assert failure.smallest.reason.startswith("kept differs first in call 2")


def test_half_precision_is_not_tested():
    functions = Functions(planted_engine(None).IMPLEMENTATIONS, precision="float16")
    outcome = run_case(functions, cases("cache_budgets")[0])
    assert outcome.status == Status.NOT_TESTED and "float16" in outcome.reason
