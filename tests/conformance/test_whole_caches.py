"""Whole caches: an engine that shares no line with the reference passes, and planted bugs fail."""

import json
from functools import lru_cache

import jsonschema
import numpy as np
import pytest
from mutants import CACHE_BUGS, identifier, planted_engine
from sampling import sampled

from kvlab.reference.conformance import Functions, Status, cache_cases, vectors, whole_cache
from kvlab.reference.conformance.checker import run_case
from kvlab.reference.conformance.minimise import reductions
from kvlab.reference.streams import Source

GROUPS = cache_cases.GROUPS
STREAMS = {group: streams for own in GROUPS.values() for group, streams in own.items()}


@lru_cache
def cases():
    read = (case for spec in GROUPS for case in vectors.read(vectors.SPECIFICATIONS[spec]))
    return [case for case in read if case.operation == "whole_cache"]


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


@pytest.mark.parametrize("group", sorted(STREAMS))
def test_the_engine_without_a_bug_passes(group):
    functions = Functions(planted_engine(None).IMPLEMENTATIONS, strict=True)
    found = {each.status for each in outcomes(functions, group)}
    assert Status.PASSED in found and Status.FAILED not in found


@pytest.mark.parametrize("spec", GROUPS)
def test_the_files_fit_schema_and_sums(spec):
    directory = vectors.SPECIFICATIONS[spec]
    vectors.check_sums(directory)
    index = json.loads((directory / vectors.INDEX).read_text())
    jsonschema.validate(index, json.loads((directory / vectors.SCHEMA).read_text()))
    assert index["specification"] == spec
    whole = [case for case in index["cases"] if case["target"].endswith(".whole_cache")]
    assert {case["group"] for case in whole} == set(GROUPS[spec])
    assert {case["parameters"]["model"] for case in whole} == {"reasoner"}


def test_the_reference_has_not_moved():
    """One case of each group, bit by bit; `kvlab conformance verify` compares all of them."""
    published = {case.name: case for case in cases()}
    for group in ("cache_plain", "cache_beams", "cache_learned_sinks", "cache_intervals"):
        made = cache_cases.first_steady(group, 0, STREAMS[group])
        for name, each in made.expected.items():
            np.testing.assert_array_equal(each.value, published[made.name].expected[name].value)


def replayed(method, budget, calls, **options):
    stream = cache_cases.Stream(method, budget, calls=calls, **options)
    inputs, parameters = stream.inputs(Source("property")), stream.parameters()
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
