"""What vLLM writes when kvlab evicts its blocks: dense attention over the blocks that are kept."""

import pytest

from kvlab.fast.vllm.settings import completed
from support.block_oracle import (
    METHODS,
    arriving,
    asked,
    assert_as_specified,
    assert_ranks_agree,
    dense,
    texts,
)
from support.tables import cases

BLOCK_OF_QUERIES = 32 * 2 * 4 * 32 * 4
"""Bytes of a block of the model's queries: layers, heads and head dimension of `conftest`."""


@pytest.mark.parametrize("method", [*METHODS, "looks@recent=16", "nacl"])
def test_a_text_is_dense_attention_over_the_blocks_that_kvlab_keeps(driver, model, method):
    prompts = texts(50, 130, 96)
    found = driver.run(asked(method), [*arriving(prompts), ["drain"]])
    assert assert_as_specified(model[0], found, prompts, method) >= (2 if method == "nacl" else 5)
    if "looks" not in method:  # which computes on the host
        assert found["waiting"] <= BLOCK_OF_QUERIES and found["waits"] <= 2


@cases(__file__, "a_table_per_layer_lets_each_layer_keep_its_own_blocks", "method differ")
def test_a_table_per_layer_lets_each_layer_keep_its_own_blocks(driver, model, method, differ):
    apart = completed(f"{method}{',' if '@' in method else '@'}kv_heads=layer", 32)
    prompts = texts(50, 130, 250, seed=1)
    events = [*arriving(prompts), ["drain"]]
    found = driver.run(asked(apart), events, enable_prefix_caching=False)
    assert assert_as_specified(model[0], found, prompts, apart) >= 10
    first, second = ([each[:3] for each in found["evicted"] if each[3] == n] for n in range(2))
    assert len(first) == len(second) and (first != second) == differ
    assert any("3 is the budget, in each of 2 tables" in line for line in found["log"])


def test_no_block_is_evicted_from_a_text_within_the_budget_and_the_log_says_so(driver):
    found = driver.run(asked("tova"), [*arriving(texts(20), 40), ["drain"]])
    assert found["evicted"] == []
    assert any("the budget had no effect" in line for line in found["log"])


def test_what_was_evicted_is_given_back_and_logged(driver):
    found = driver.run(asked("tova"), [*arriving(texts(100), 120), ["drain"]])
    evicted = len(found["evicted"])
    assert evicted == 4
    said = f"{evicted} blocks evicted, {evicted} given back to the pool (4 blocks held at most"
    assert any(said in line for line in found["log"])
    assert found["least_free"] == found["blocks"] - 3  # when a step has ended


def test_without_configuration_the_full_cache_writes_and_nothing_is_logged(driver, model):
    prompts = texts(100)
    found = driver.run(None, [*arriving(prompts), ["drain"]])
    tokens, _ = dense(model[0], prompts["r0"], found["texts"]["r0/0"]["tokens"], [])
    assert found["texts"]["r0/0"]["tokens"] == tokens and found["log"] == []


def test_attention_stays_outside_of_what_is_compiled(driver, model):
    """As in piecewise CUDA graphs: the rest of the model is traced, and no table is in a graph."""
    prompts, method = texts(50, 130), "caote:h2o@recent=16"
    found = driver.run(asked(method), [*arriving(prompts), ["drain"]], enforce_eager=False)
    assert assert_as_specified(model[0], found, prompts, method) >= 4
    assert found["graphs"] >= 1


@pytest.mark.parametrize("method", [*METHODS, "looks@recent=16", "nacl"])
def test_two_ranks_write_and_evict_what_one_does(driver, method):
    """Each of two processes has one of the KV heads, and its queries."""
    assert_ranks_agree(driver, asked(method), [*arriving(texts(50, 130, 96), 40), ["drain"]])
