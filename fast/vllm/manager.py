"""The scheduler's side: evicted blocks go back to the pool, and no request is ever preempted."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.engine import FinishReason
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

from kvlab.fast.engine.serving import Siblings
from kvlab.fast.vllm.settings import Settings, UnsupportedError

logger = logging.getLogger("vllm.kvlab")


@dataclass(frozen=True, kw_only=True)
class EvictingSpec(FullAttentionSpec):
    """Full attention whose blocks are evicted."""

    hits: tuple[int, int] = (0, 1)
    """Tokens of a prompt that are read before any block can be evicted, and how many of the last
    ones a score has to see attend."""
    table: int = 0
    """Layers of one number have one table of blocks."""

    @classmethod
    def merge(cls, specs: Sequence["EvictingSpec"]) -> "EvictingSpec":
        assert len({each.table for each in specs}) == 1  # what vLLM asks by merging
        merged, (first, *_) = super().merge(list(specs)), specs
        return replace(merged, hits=first.hits, table=first.table)

    def is_uniform_with_collection(self, kv_cache_specs: dict[str, Any]) -> bool:
        return len({each.table for each in kv_cache_specs.values()}) == 1


UNUSED_TABLES = count()


def evicting(spec: Any, settings: Settings) -> EvictingSpec:
    """Return the specification of a layer's cache, for blocks that are evicted."""
    if type(spec) is not FullAttentionSpec or spec.sliding_window or spec.attention_chunk_size:
        raise UnsupportedError(f"kvlab: every layer must have full attention, not {spec}")
    table = next(UNUSED_TABLES) if settings.per_layer else 0
    hits = settings.holding.undecided, settings.policy.last_read or 1
    return EvictingSpec(**vars(spec), hits=hits, table=table)


@dataclass(eq=False)
class Account:
    """What a request holds in each of its tables."""

    request: Any
    settings: Settings
    tables: int
    freed: int = 0
    evicted: int = 0
    """Blocks that were evicted; those that other requests still read are not freed."""
    most: int = 0
    read: int = 0
    """Tokens that count as the prompt."""
    preemptions: int = -1
    """How often the request was preempted, when it was admitted last."""
    bounds: Sequence[tuple[int, int]] = ()
    """See `Holding.most`."""
    error: str | None = None
    """Why the request ends before its text does."""
    siblings: Siblings = field(default_factory=Siblings)
    """Accounts of requests for texts of the same prompt, if a score has to see all of it."""

    def begin(self) -> None:
        """Take the text so far as the prompt."""
        self.read, self.preemptions = self.request.num_tokens, self.request.num_preemptions
        self.bounds = self.settings.holding.most(self.read, self.last)

    def fail(self, error: str, reason: FinishReason = FinishReason.ERROR) -> None:
        """End the request with its next token."""
        logger.error("kvlab ends request %s: %s", self.request.request_id, error)
        self.error = self.request.stop_reason = error
        self.request.max_tokens = 0
        self.request.get_finished_reason = lambda: reason

    @property
    def last(self) -> int:
        """Tokens that the request has at most when it ends."""
        written = self.request.num_prompt_tokens + self.request.max_tokens
        return max(self.read, min(written, self.settings.longest))

    @property
    def reserved(self) -> int:
        """Blocks that the request holds at most from now on; this never rises."""
        seen, last = self.request.num_computed_tokens, 0
        for until, most in self.bounds:  # no generator: an admission asks all that run
            last = most
            if seen <= until:
                break
        return last

    def turn(self, seen: int) -> tuple[str, bool]:
        """Return the name of the siblings in a step, and whether it keeps what another one kept.

        A request that is preempted finds no blocks any more: its text is another one's no longer.
        """
        if self.siblings.texts:
            self.request.skip_reading_prefix_cache = True
        if self.read > self.request.num_prompt_tokens:
            return "", False
        return self.siblings.name, self.siblings.turn(seen, self.read)

    def summary(self) -> str:
        """Say in a line what was evicted."""
        held = f"{self.most} blocks held at most, {self.settings.blocks} is the budget"
        if self.tables > 1:
            held += f", in each of {self.tables} tables"
        if self.error is not None:
            return f"{self.error} ({held})"
        if not self.evicted:
            return f"nothing was evicted: the budget had no effect ({held})"
        return f"{self.evicted} blocks evicted, {self.freed} given back to the pool ({held})"


class EvictingManager(FullAttentionManager):
    """Blocks of requests that evict some.

    A request is admitted when the pool is as large as all that it and those that run can hold from
    then on. These bounds only fall: none is ever preempted, and read in another way than written.
    """

    def __init__(self, kv_cache_spec: EvictingSpec, **given: Any) -> None:
        super().__init__(kv_cache_spec, **given)
        self.accounts: dict[str, Account] = {}

    def evict(self, request_id: str, preemptions: int, blocks: Iterable[int]) -> None:
        """Take back blocks that the worker has evicted, unless they are gone by a preemption."""
        account, held = self.accounts.get(request_id), self.req_to_blocks.get(request_id)
        if account is None or not held or account.preemptions != preemptions:
            return
        leaving = [held[index] for index in blocks]
        self.block_pool.free_blocks(reversed(leaving))
        for index in blocks:
            held[index] = self._null_block
        account.evicted += len(leaving)
        account.freed += sum(block.ref_cnt == 0 for block in leaving)

    def get_num_blocks_to_allocate(self, request_id: str, *args: Any, **given: Any) -> int:
        needed = super().get_num_blocks_to_allocate(request_id, *args, **given)
        if (held := self.req_to_blocks).get(request_id):
            return needed
        own = self.accounts[request_id]
        if own.preemptions != own.request.num_preemptions:
            own.begin()
        running = [each.reserved for name, each in self.accounts.items() if held.get(name)]
        used = self.block_pool.num_gpu_blocks - 1 - self.block_pool.get_num_free_blocks()
        needed = min(needed, own.reserved)  # vLLM may ask for a whole prompt
        return max(needed, own.reserved + sum(running) - used // own.tables)

    def allocate_new_blocks(self, request_id: str, *args: Any, **given: Any) -> list:
        new = super().allocate_new_blocks(request_id, *args, **given)
        account, blocks = self.accounts[request_id], self.req_to_blocks[request_id]
        account.most = max(account.most, sum(block is not self._null_block for block in blocks))
        return new

    def cache_blocks(self, request: Any, num_tokens: int, *args: Any, **given: Any) -> None:
        """Offer blocks to other requests that were computed before anything was evicted."""
        offered = min(self.accounts[request.request_id].read, self.kv_cache_spec.hits[0])
        super().cache_blocks(request, min(num_tokens, offered), *args, **given)

    @classmethod
    def find_longest_cache_hit(cls, *args: Any, max_length: int, **given: Any) -> Any:
        """Find blocks of the same prefix that were read before any eviction.

        ``max_length``: all tokens but one. What a score has to see attend is read again.
        """
        undecided, reads = given["kv_cache_spec"].hits
        length = max(0, min(max_length + 1, undecided) - reads)
        return super().find_longest_cache_hit(*args, max_length=length, **given)


KVCacheSpecRegistry.check_kv_cache_spec_registry({})  # vLLM's own come first
KVCacheSpecRegistry.register(EvictingSpec, EvictingManager, FullAttentionSpec)
