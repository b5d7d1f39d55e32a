"""Eviction within prompts, every so many tokens of the text, whatever the chunks of vLLM are."""

import pytest

from kvlab.fast.vllm import SCHEDULER
from support.block_oracle import METHODS, arriving, asked, assert_as_specified, of, texts

SIZE = 64
SMALL = {
    "scheduler_cls": SCHEDULER,
    "num_gpu_blocks_override": 18,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 150,  # chunks end within blocks, and blocks within chunks
    "enable_prefix_caching": True,
}
WITHIN = [method for method in METHODS if "lazy" not in method and "rkv" not in method]


@pytest.mark.parametrize("method", [*WITHIN, "looks@recent=16"])
def test_a_text_is_what_compress_writes_in_blocks(driver, model, method):
    """Four prompts of up to nine blocks of vLLM's, which has 17 and preempts none of them."""
    prompts = texts(270, 50, 200, 129, seed=11)
    given = asked(method, block_size=SIZE)
    found = driver.run(given, [*arriving(prompts, 40), ["drain"]], **SMALL)
    assert assert_as_specified(model[0], found, prompts, method, size=SIZE) >= 12
    assert {seen for seen, *_ in of(found, "r0")} >= {128, 192, 256, 270}
    assert found["preempted"] == 0 and found["at_once"] == 4
