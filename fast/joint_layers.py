"""The entries of all layers in one table: a decoding step decides for every layer at once.

While single tokens are generated, most of a step's time goes into starting small operations. So the
layers only write their keys and values and attend; score, selection and eviction run once for all
of them, at the end of the step. Layer l's sequence r is row l·N + r of the batch axis, so that
scores, protection and selection are those of `kvlab.fast.policy`.

Between two decisions nothing leaves. Where a score allows it, tokens in between attend by PyTorch's
fused kernels, which do not tell the probabilities, and the score observes them together afterwards:
one product of their queries with the keys in place of one per token.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.attention import (
    attend,
    attend_without_weights,
    compute_dtype,
    logits,
    softmax,
    softmax_in_place,
    visible,
)
from kvlab.fast.cache import LayerCache, LayerMemory
from kvlab.fast.columns import MOST_SLACK, Table
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.policy import (
    BatchClock,
    Block,
    Looked,
    Observation,
    Policy,
    StepResult,
    compress,
    look,
    parts,
    rows_to_read,
)

SOON = 2 * MOST_SLACK
"""Tokens within which a policy has to look again, for its layers to be stacked."""

MOST_WAITING = 32
"""Tokens whose queries wait for the score to observe them."""


def can_stack(policy: Policy, caches: Sequence[LayerCache], clock: BatchClock) -> bool:
    """Say whether these layers can share a table.

    They can where a policy keeps 16 bit and looks often, and all layers have equally many entries.
    """
    specification = policy.specification
    if policy.precision.quantises or specification.evict_before_attend or specification.reposition:
        return False
    first, now = caches[0], clock.rows[0]
    alike = all(
        cache.counts == first.counts and cache.table.layout == first.table.layout
        for cache in caches
    )
    later = (replace(now, seen=now.seen + ahead) for ahead in range(SOON))
    return alike and any(policy.schedule.due(token) for token in later)


@dataclass(frozen=True)
class Waiting:
    """A token that the score has not observed yet."""

    queries: list[Float[Tensor, "N G rho 1 d"]]
    """Of every layer."""
    clock: BatchClock


class Stack:
    """Layers that decide together."""

    def __init__(self, policy: Policy, caches: Sequence[LayerCache]) -> None:
        """Take the entries over; the caches are empty afterwards."""
        self.policy = policy
        self.layers = len(caches)
        self.sequences = len(caches[0].counts)
        self.cache = joined(caches)
        self.prompt: Int[Tensor, "N 1 1"] | None = None
        keys = self.cache.table["keys"]
        self.heads, stored = keys.shape[1], keys.dtype
        self.dtype = compute_dtype(stored)
        self.converts = self.dtype != stored
        self.triton = uses_triton(keys)
        self.waiting: list[Waiting] = []

    @property
    def counts(self) -> tuple[int, ...]:
        """Entries per head of each sequence, in every layer."""
        return self.cache.counts[: self.sequences]

    def begin(self, clock: BatchClock) -> None:
        """Open a slot for the next token in every layer."""
        repeats = self.layers
        if self.prompt is None:
            self.prompt = clock.prompt.repeat(repeats, 1, 1)
        positions = clock.positions.expand(repeats, *clock.positions.shape).flatten(0, 1)
        self.clock = BatchClock(clock.rows * repeats, positions, self.prompt)
        self.due = [self.policy.schedule.due(row) for row in clock.rows]
        self.reads = rows_to_read(self.policy, clock)
        self.waits = (
            self.policy.score.can_wait
            and self.reads != "none"
            and not self.triton
            and not any(self.due)
        )
        columns = {"positions": positions[:, None].expand(-1, self.heads, 1)}
        reused = self.cache.open_slots(columns, self.clock.present, self.dtype)
        self.reused = None if reused is None else reused.view(repeats, -1)
        self.mask = None
        if self.cache.ragged:
            self.mask = visible(self.clock.positions, self.cache.positions)
        self.queries: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.looked: list[Looked] = []
        self.softcap: float | None = None
        self.confidence: Tensor | None = None

    def attend(self, place: int, block: Block) -> Float[Tensor, "N G rho 1 d"]:
        """Write one layer's keys and values and attend to its entries.

        Args:
            place: number of the layer among the stacked ones.
            block: what the model hands over; one token.
        """
        rows = (place * self.sequences, self.sequences)
        self._write(place, "keys", block.keys)
        self._write(place, "values", block.values)
        queries = block.queries.to(self.dtype) if self.converts else block.queries
        self.queries.append(queries)
        self.softcap, self.confidence = block.softcap, block.confidence
        attend_to = self._attend_by_triton if self.triton else self._attend_by_torch
        output = attend_to(queries, *rows)
        return output.to(block.keys.dtype) if self.converts else output

    def _attend_by_triton(
        self, queries: Float[Tensor, "N G rho 1 d"], first: int, sequences: int
    ) -> Float[Tensor, "N G rho 1 d"]:
        def column(name: str) -> Tensor:
            return self.cache.table.of_sequences(name, first, sequences)

        places = column("positions") if self.cache.ragged else None
        keys, values = column("keys"), column("values")
        output, found = look(
            self.policy, self.reads, queries, keys, values, places, self.softcap, column
        )
        self.looked.append(found)
        return output

    def _attend_by_torch(
        self, queries: Float[Tensor, "N G rho 1 d"], first: int, sequences: int
    ) -> Float[Tensor, "N G rho 1 d"]:
        table = self.cache.table
        keys = table.of_sequences("keys", first, sequences)
        values = table.of_sequences("values", first, sequences)
        if self.converts:
            keys, values = keys.to(self.dtype), values.to(self.dtype)
        mask = None if self.mask is None else self.mask.narrow(0, first, sequences)
        if (self.waits or self.reads == "none") and self.softcap is None:
            return attend_without_weights(queries, keys, values, mask)
        output, weights = attend(queries, keys, values, mask, self.softcap)
        if not self.waits:
            self.weights.append(weights)
        return output

    def finish(self) -> None:
        """Let the score observe all layers and, if the step is due, evict in all of them."""
        if self.waits:
            self.waiting.append(Waiting(self.queries, self.clock))
            if len(self.waiting) == MOST_WAITING:
                self.catch_up()
            return
        self.catch_up()
        weights = torch.cat(self.weights) if self.weights else None
        seen = self._observation(self.clock, torch.cat(self.queries), weights)
        if self.looked:
            seen.weights = _of_all([layer.weights for layer in self.looked])
            seen.joined = _of_all([layer.joined for layer in self.looked])
            seen.output = _of_all([layer.output for layer in self.looked])
            seen.tracked = self.looked[0].tracked
        self.queries, self.weights, self.looked = [], [], []
        self.policy.score.observe(self.cache.state, seen)
        if any(self.due):
            result = StepResult(seen.queries, seen.positions, None, None, self.cache)
            compress(self.policy, seen, self.due * self.layers, result)

    def catch_up(self) -> None:
        """Let the score observe the tokens that wait, as one block."""
        if not self.waiting:
            return
        tokens, layers = len(self.waiting), zip(*(one.queries for one in self.waiting), strict=True)
        queries = torch.cat([torch.cat(layer, dim=3) for layer in layers])
        positions = torch.cat([one.clock.positions for one in self.waiting], dim=1)
        last, self.waiting = self.waiting[-1].clock, []
        rows = tuple(replace(row, block=tokens) for row in last.rows)
        clock = BatchClock(rows, positions, last.prompt)
        keys = self.cache.keys(queries.dtype)
        for part in parts(queries, len(self.cache)):
            weights = logits(queries[:, :, :, part], keys, self.softcap)
            if self.cache.ordered and not self.cache.ragged:
                # the slot of the token that decides may be open already
                newest = self.cache.positions[:, :, None, None, -tokens - 1 :]
                softmax_in_place(weights, newest > positions[:, None, None, part, None])
            else:
                weights = softmax(weights, visible(positions[:, part], self.cache.positions))
            seen = self._observation(clock, queries[:, :, :, part], weights)
            seen.query_positions = positions[:, part]
            self.policy.score.observe(self.cache.state, seen)

    def map_rows(self, change: Callable[[Tensor], Tensor], order: Sequence[int]) -> None:
        """Apply one change of the batch axis; ``order`` is the same change as indices."""
        self.catch_up()
        N = self.sequences
        self.cache.map_rows(
            lambda x: torch.cat([change(part) for part in x.split(N)]),
            [layer * N + row for layer in range(self.layers) for row in order],
        )
        self.sequences, self.prompt = len(order), None

    def memory(self) -> list[LayerMemory]:
        """Bytes that each layer has allocated; waiting queries are state."""
        whole = self.cache.memory()
        queries = sum(layer.nbytes for one in self.waiting for layer in one.queries)
        whole = replace(whole, state=whole.state + queries)
        share = LayerMemory(*(size // self.layers for size in astuple(whole)))
        return [share] * self.layers

    def split(self) -> list[LayerCache]:
        """Give every layer a cache of its own again."""
        self.catch_up()
        return separated(self.cache, self.layers)

    def _observation(
        self, clock: BatchClock, queries: Tensor, weights: Tensor | None
    ) -> Observation:
        assert self.confidence is not None
        return Observation(
            clock=clock,
            layer=-1,
            queries=queries,
            query_positions=clock.positions,
            weights=weights,
            positions=self.cache.positions,
            cache=self.cache,
            confidence=self.confidence,
            softcap=self.softcap,
        )

    def _write(self, place: int, name: str, new: Float[Tensor, "N G 1 d"]) -> None:
        table = self.cache.table
        if self.reused is not None:
            table.flat(name).index_copy_(0, self.reused[place], new.flatten(0, 2))
        else:
            table.newest_of(name, place * self.sequences, self.sequences).copy_(new)


def _of_all(layers: Sequence[Tensor | None]) -> Tensor | None:
    present = [layer for layer in layers if layer is not None]
    return torch.cat(present) if present else None


def joined(caches: Sequence[LayerCache]) -> LayerCache:
    """Move the entries of all layers into one cache, layer after layer along the batch axis."""
    first = caches[0]
    for cache in caches:
        cache.settle()
    whole = LayerCache(first.fills)
    whole.table = Table.joined([cache.table for cache in caches])
    whole.state.table = whole.table
    whole.state.stream = {
        name: torch.cat([cache.state.stream[name] for cache in caches])
        for name in first.state.stream
    }
    whole.counts = first.counts * len(caches)
    whole.demoted = first.demoted * len(caches)
    whole.ordered = all(cache.ordered for cache in caches)
    lowest = [cache.lowest_scores for cache in caches]
    if all(score is not None for score in lowest):
        heads = whole.positions.shape[1]
        whole.lowest_scores = torch.cat([s.expand(-1, heads, 1) for s in lowest if s is not None])
    return whole


def separated(whole: LayerCache, layers: int) -> list[LayerCache]:
    """Invert `joined`."""
    whole.settle()
    sequences = len(whole.counts) // layers
    tables = whole.table.separated(layers)
    caches = []
    borders = pairwise(range(0, len(whole.counts) + 1, sequences))
    for table, (first, last) in zip(tables, borders, strict=True):
        cache = LayerCache(whole.fills)
        cache.table = cache.state.table = table
        cache.state.stream = {name: x[first:last] for name, x in whole.state.stream.items()}
        cache.counts, cache.demoted = whole.counts[first:last], whole.demoted[first:last]
        cache.ordered = whole.ordered
        if whole.lowest_scores is not None:
            cache.lowest_scores = whole.lowest_scores[first:last]
        caches.append(cache)
    return caches
