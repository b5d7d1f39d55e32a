"""The entries of all layers in common columns: a decoding step decides for every layer at once.

While single tokens are generated, most of a step's time goes into starting small operations. So the
layers only write their keys and values and attend; score, selection and eviction run once for all
of them, at the end of the step. Layer l's sequence r is row l·N + r of the batch axis, so that
scores, protection and selection are those of `kvlab.fast.engine.policy`.

Between two decisions nothing leaves. Where a score allows it, tokens in between attend by PyTorch's
fused kernels, which do not return the probabilities. The score observes these tokens together
afterwards: one product of their queries with the keys in place of one per token.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.engine.attention import compute_dtype, logits, softmax, softmax_in_place, visible
from kvlab.fast.engine.batch import BatchClock
from kvlab.fast.engine.cache import LayerCache, LayerMemory
from kvlab.fast.engine.columns import MOST_SLACK, Columns
from kvlab.fast.engine.observation import Attended, LayerView, Observation, attend_as_needed, parts
from kvlab.fast.engine.policy import Policy
from kvlab.fast.engine.step import Block, decide
from kvlab.fast.kernels.choice import uses_triton

SOON = 2 * MOST_SLACK
"""Layers are joined only if a decision is due within this many tokens."""

MOST_WAITING = 32
"""Tokens whose queries wait for the score to observe them."""


def can_join(policy: Policy, caches: Sequence[LayerCache], clock: BatchClock) -> bool:
    """Say whether these layers can share columns.

    They can if the policy does not quantise, decides within `SOON` tokens, evicts after attention,
    moves no positions and has a twin for each of its parts, and if all layers have equally many
    entries.
    """
    specification = policy.specification
    if policy.precision.quantises or policy.on_host:
        return False
    if specification.evict_before_attend or specification.reposition:
        return False
    first, now = caches[0], clock.rows[0]
    alike = all(
        cache.counts == first.counts and cache.columns.layout == first.columns.layout
        for cache in caches
    )
    later = (replace(now, seen=now.seen + ahead) for ahead in range(SOON))
    return alike and any(policy.schedule.due(token) for token in later)


@dataclass(frozen=True)
class Waiting:
    """A token that the score has not observed yet."""

    queries: list[Float[Tensor, "N G rho 1 d"]]
    """The queries of every layer."""
    clock: BatchClock


class JointLayers:
    """Layers that decide together."""

    def __init__(self, policy: Policy, caches: Sequence[LayerCache]) -> None:
        """Take the entries over; the caches are empty afterwards."""
        self.policy = policy
        self.layers = len(caches)
        self.sequences = len(caches[0].counts)
        self.cache = joined(caches)
        self.prompt: Int[Tensor, "N 1 1"] | None = None
        keys = self.cache.columns["keys"]
        self.heads, stored = keys.shape[1], keys.dtype
        self.dtype = compute_dtype(stored)
        self.converts = self.dtype != stored
        self.triton = uses_triton(keys)
        self.may_wait = policy.needs.may_wait and not self.triton
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
        self.rows = self.policy.needs.reads(clock)
        self.waits = self.may_wait and self.rows != "none" and not any(self.due)
        columns = {"positions": positions[:, None].expand(-1, self.heads, 1)}
        reused = self.cache.open_slots(columns, self.clock.present, self.dtype)
        self.reused = None if reused is None else reused.view(repeats, -1)
        self.ragged = self.cache.ragged
        self.queries: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.attended: list[Attended] = []
        self.softcap: float | None = None
        self.confidence: Tensor | None = None

    def attend(self, place: int, block: Block) -> Float[Tensor, "N G rho 1 d"]:
        """Write one layer's keys and values and attend to its entries.

        Args:
            place: number of the layer among the joint ones.
            block: what the model hands over; one token.
        """
        self._write(place, "keys", block.keys)
        self._write(place, "values", block.values)
        queries = block.queries.to(self.dtype) if self.converts else block.queries
        self.softcap, self.confidence = block.softcap, block.confidence
        first, number = place * self.sequences, self.sequences
        column = partial(self.cache.columns.of_sequences, first=first, sequences=number)
        view = LayerView(column, self.dtype, self.ragged, self.triton, block.softcap)
        reads = self.rows != "none" and not self.waits
        output, attended = attend_as_needed(self.policy.needs, reads, queries, None, view)
        self.queries.append(queries)
        self.outputs.append(output)
        self.attended.append(attended)
        return output.to(block.keys.dtype) if self.converts else output

    def finish(self) -> None:
        """Let the score observe all layers and, if the step is due, evict in all of them."""
        if self.waits:
            self.waiting.append(Waiting(self.queries, self.clock))
            if len(self.waiting) == MOST_WAITING:
                self.catch_up()
            return
        self.catch_up()
        seen = self._observation(self.clock, torch.cat(self.queries))
        seen.attended = Attended.of_all(self.attended)
        if self.rows == "last":
            seen.newest_output = torch.cat(self.outputs)[:, :, :, 0]
        self.queries, self.outputs, self.attended = [], [], []
        self.policy.score.observe(self.cache.state, seen)
        decision = decide(self.policy, seen, self.due * self.layers) if any(self.due) else None
        if decision is not None and decision.evicted_slot is not None:
            self.cache.evict_one(decision.evicted_slot)
        elif decision is not None and decision.keep is not None:
            self.cache.compact(decision.keep)

    def catch_up(self) -> None:
        """Let the score observe the tokens that wait, as one block."""
        if not self.waiting:
            return
        tokens, layers = len(self.waiting), zip(*(one.queries for one in self.waiting), strict=True)
        queries = torch.cat([torch.cat(layer, dim=3) for layer in layers])
        positions = torch.cat([one.clock.positions for one in self.waiting], dim=1)
        last, self.waiting = self.waiting[-1].clock, []
        rows = tuple(replace(row, block=tokens) for row in last.rows)
        seen = self._observation(BatchClock(rows, positions, last.prompt), queries)
        for part in parts(queries, len(self.cache)):
            weights = logits(queries[:, :, :, part], seen.keys, self.softcap)
            if self.cache.ordered and not self.cache.ragged:
                # the slot of the token that decides may be open already
                newest = self.cache.positions[:, :, None, None, -tokens - 1 :]
                softmax_in_place(weights, newest > positions[:, None, None, part, None])
            else:
                weights = softmax(weights, visible(positions[:, part], self.cache.positions))
            self.policy.score.observe(self.cache.state, seen.part(part, Attended(weights)))

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

    def _observation(self, clock: BatchClock, queries: Tensor) -> Observation:
        assert self.confidence is not None
        column, ragged = self.cache.columns.__getitem__, self.cache.ragged
        return Observation(
            clock=clock,
            layer=-1,
            queries=queries,
            query_positions=clock.positions,
            cache=self.cache,
            view=LayerView(column, self.dtype, ragged, self.triton, self.softcap),
            confidence=self.confidence,
        )

    def _write(self, place: int, name: str, new: Float[Tensor, "N G 1 d"]) -> None:
        columns = self.cache.columns
        if self.reused is not None:
            columns.flat(name).index_copy_(0, self.reused[place], new.flatten(0, 2))
        else:
            columns.newest_of(name, place * self.sequences, self.sequences).copy_(new)


def joined(caches: Sequence[LayerCache]) -> LayerCache:
    """Move the entries of all layers into one cache, layer after layer along the batch axis."""
    first = caches[0]
    for cache in caches:
        cache.settle()
    whole = LayerCache(first.columns.state)
    whole.columns = whole.state.entries = Columns.joined([cache.columns for cache in caches])
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
    caches = []
    borders = pairwise(range(0, len(whole.counts) + 1, sequences))
    for columns, (first, last) in zip(whole.columns.separated(layers), borders, strict=True):
        cache = LayerCache(columns.state)
        cache.columns = cache.state.entries = columns
        cache.state.stream = {name: x[first:last] for name, x in whole.state.stream.items()}
        cache.counts, cache.demoted = whole.counts[first:last], whole.demoted[first:last]
        cache.ordered = whole.ordered
        if whole.lowest_scores is not None:
            cache.lowest_scores = whole.lowest_scores[first:last]
        caches.append(cache)
    return caches
