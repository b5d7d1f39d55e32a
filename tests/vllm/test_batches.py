"""A batch without vLLM: its table without evicted blocks, its lengths, and the queries it notes."""

from types import SimpleNamespace as Fake

import torch

from kvlab.fast.vllm.requests import Batch, Built, Place, Requests
from kvlab.fast.vllm.settings import Settings, completed

COMMON = Fake(
    num_actual_tokens=4,
    query_start_loc_cpu=torch.tensor([0, 2, 4, 4]),
    slot_mapping=torch.tensor([228, 229, 96, 97]),
    block_table_tensor=torch.tensor([[5, 6, 7], [3, 0, 0]]),
    seq_lens=torch.tensor([70, 2, 0]),
    seq_lens_cpu_upper_bound=None,
)
"""Two tokens each of a text in blocks 5, 6 and 7 and of one in block 3, and padding."""


def test_a_batch_attends_to_kept_blocks_and_notes_the_newest_queries():
    settings = Settings(completed("tova", 32), 96, 32, 512, 0, 512)
    requests, of_tokens = Requests(settings, "ab", "ab"), {"prompt": 2, "new": 2, "longest": 99}
    long, short = (Place(str(seen), 0, "", False, seen=seen, **of_tokens) for seen in (70, 2))
    requests.of(long).evict({0, 2})
    requests.begin({7: long, 3: short}, set(), set())
    builder = Fake(settings=settings, kv_cache_spec=Fake(block_size=32))
    builder.build_again = lambda _, **changed: changed
    batch = Batch(requests, Fake(kvlab=Built(builder, COMMON)))
    assert batch.kept_metadata["block_table_tensor"].tolist() == [[5, 7, 7], [3, 3, 0]]
    assert batch.kept_metadata["seq_lens"].tolist() == [38, 2, 0]
    query, attention = torch.randn(5, 1, 4), Fake(num_heads=1, scale=1)
    assert [batch.attended(attention, Fake(layer_name=x), query) for x in "ab"] == [False, True]
    assert batch.queries is not None
    assert torch.equal(batch.queries[1], 2 * query[[1, 3]])  # the engine divides by √4
