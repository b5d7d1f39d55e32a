"""vLLM's attention for GPUs, without one: TRITON_ATTN in Triton's interpreter, FLASH_ATTN densely.

Layouts of caches, blocks of 16, metadata, tables and, of TRITON_ATTN, kernels are those of a GPU.
"""

import pytest

from support.block_oracle import (
    METHODS,
    arriving,
    asked,
    assert_as_specified,
    assert_ranks_agree,
    dense,
    of,
    texts,
)
from support.tables import cases

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("python")]
BLOCK, BUDGET = 16, 32
SMALL = {"block_size": BLOCK, "num_gpu_blocks_override": 13, "max_num_batched_tokens": 40}
SMALL |= {"max_num_seqs": 3, "max_model_len": 192, "enable_prefix_caching": True}


@pytest.mark.parametrize("backend", ["FLASH_ATTN", "TRITON_ATTN"])
@pytest.mark.parametrize("method", METHODS)
def test_a_text_is_as_specified(driver_of, model, method, backend):
    prompts, driver = texts(20, 45), driver_of(backend)
    found = driver.run(asked(method, BUDGET), [*arriving(prompts, 24), ["drain"]], block_size=BLOCK)
    assert assert_as_specified(model[0], found, prompts, method, BUDGET, BLOCK) >= 2


@cases(__file__, "a_cache_is_read_in_any_layout", "backend layout inner segments")
def test_a_cache_is_read_in_any_layout_and_never_copied(
    driver_of, model, backend, layout, inner, segments
):
    """``inner``: how far apart the heads are, and the tokens of a block.

    With segments, TRITON_ATTN takes the kernels in which parts of a text attend apart.
    """
    prompts, driver = texts(20, 45, seed=2), driver_of(backend)
    events, how = [*arriving(prompts, 24), ["drain"]], {"layout": layout, "segments": segments}
    found = driver.run(asked("caote:h2o@recent=8", BUDGET), events, block_size=BLOCK, **how)
    assert_as_specified(model[0], found, prompts, "caote:h2o@recent=8", BUDGET, BLOCK)
    assert found["strides"][1:3] == inner and found["waits"] == 2
    entry = 2 * 32 * 2  # key and value of the 2 KV heads of a layer
    assert 0 < found["copied"] <= 48 * entry  # of 60 blocks of 16 at most 3 were read at once


@pytest.mark.parametrize("backend", ["FLASH_ATTN", "TRITON_ATTN"])
@pytest.mark.parametrize("method", ["tova", "caote:h2o@recent=8"])
def test_prefixes_chunks_aborts_and_a_full_pool(driver_of, model, method, backend):
    """What two that share a prefix write, beside one that is taken back, with blocks for two."""
    shared = texts(48, seed=3)["r0"]
    tails = texts(20, 9, 30, seed=4).values()
    prompts = {name: [*shared, *tail] for name, tail in zip("abc", tails, strict=True)}
    a, b, gone = arriving(prompts, 20)
    late = arriving({"d": texts(40, seed=6)["r0"]}, 12)
    events = [a, ["step", {"times": 4}], b, gone, ["step", {"times": 3}], ["abort", {"name": "c"}]]
    found = driver_of(backend).run(asked(method, BUDGET), [*events, *late, ["drain"]], **SMALL)
    del prompts["c"]
    prompts["d"] = texts(40, seed=6)["r0"]
    assert_as_specified(model[0], found, prompts, method, BUDGET, BLOCK)
    assert found["preempted"] == 0 and found["cached"] == (48 if method == "tova" else 0)
    assert of(found, "a") and of(found, "b") and found["waits"] <= 2


@pytest.mark.parametrize("backend", ["FLASH_ATTN", "TRITON_ATTN"])
def test_two_ranks_write_what_one_does(driver_of, backend):
    events, method = [*arriving(texts(20, 45), 24), ["drain"]], asked("caote:h2o@recent=8", BUDGET)
    assert_ranks_agree(driver_of(backend), method, events, block_size=BLOCK)


@pytest.mark.parametrize("backend", ["FLASH_ATTN", "TRITON_ATTN"])
def test_a_text_in_bfloat16_is_dense_attention_over_the_kept_blocks(driver_of, model, backend):
    """Within what bfloat16 rounds: the oracle reads the same tokens in float32."""
    prompts, method = texts(20, 45), asked("caote:h2o@recent=8", BUDGET)
    events, how = [*arriving(prompts, 24), ["drain"]], {"block_size": BLOCK, "dtype": "bfloat16"}
    found = driver_of(backend).run(method, events, **how)
    assert "error" not in found, found["trace"]
    for name, prompt in prompts.items():
        text, evicted = found["texts"][f"{name}/0"], of(found, name)
        _, logp = dense(model[0], prompt, text["tokens"], evicted, block=BLOCK)
        assert evicted and logp == pytest.approx(text["logp"], abs=0.1)
