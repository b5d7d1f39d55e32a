"""vLLM's pool of blocks: ``kvlab conformance run vllm_block_pool.py``, where vLLM is installed.

The requests are those of ``block_pool.py``; vLLM hands blocks out and counts who uses them.
"""

import block_pool
from vllm.v1.core.block_pool import BlockPool


class Blocks(block_pool.Blocks):
    """Memory beside vLLM's pool, whose first block is nobody's."""

    def __init__(self, pages, page, G, d):
        super().__init__(pages + 1, page, G, d)
        self.pool = BlockPool(pages + 1, enable_caching=False, hash_block_size=page)

    def take(self):
        return self.pool.get_new_blocks(1)[0].block_id

    def share(self, block):
        self.pool.touch([self.pool.blocks[block]])

    def drop(self, block):
        self.pool.free_blocks([self.pool.blocks[block]])

    def users(self, block):
        return self.pool.blocks[block].ref_cnt

    def left(self):
        return self.pool.get_num_free_blocks()


ARRAYS = "torch"
IMPLEMENTATIONS = {"events": block_pool.played_by(Blocks)}
