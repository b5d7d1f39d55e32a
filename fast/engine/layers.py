"""The layers of a model that a policy compresses: each in a cache of its own, or all in one.

A prompt goes through the model layer by layer, and its attention is large: every layer decides for
itself. While single tokens are generated, most of a step's time goes into starting small
operations: layers share a cache where they can. The batch axis of that cache has a row for every
layer and sequence; layer l's sequence r is row l·N + r.

Between two decisions nothing is evicted. Where a score allows it, tokens in between attend by
PyTorch's fused kernels, which do not return the probabilities. The score observes these tokens
together afterwards: one product of their queries with the keys in place of one per token.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.engine.cache import BatchClock, LayerCache, LayerMemory
from kvlab.fast.engine.observation import Attended, LayerView, Observation, parts
from kvlab.fast.engine.policy import Policy
from kvlab.fast.kernels.attention import logits, softmax, visible, without_autocast
from kvlab.fast.kernels.notation import Marks, Positions, Queries, Scores
from kvlab.fast.kernels.vector_tables import MOST_SLACK

MOST_WAITING = 32
"""Tokens whose queries wait for the score to observe them."""

SOON = 2 * MOST_SLACK
"""Layers share a cache only if a decision is due within this many tokens."""


@dataclass(eq=False)
class Block:
    """What the model hands to one layer for one block of tokens."""

    clock: BatchClock
    layer: int
    queries: Queries
    keys: Float[Tensor, "N G m d"]
    values: Float[Tensor, "N G m d"]
    confidence: Float[Tensor, "N t"]
    rotate: Callable[[Tensor, Tensor], Tensor] | None = None
    """Rotate vectors by a number of positions (RoPE); needed by ``reposition`` only."""
    softcap: float | None = None
    """Bound of the model's attention logits, if it has one."""
    hidden_states: Float[Tensor, "N m D"] | None = None
    """What the model projects to queries, keys and values, if the score reads it."""
    layers: int = 1
    """Layers of the model."""


@dataclass(eq=False)
class StepResult:
    """What one step of one layer produced, for `compress(watch=...)`: copies of it."""

    output: Queries
    positions: Positions
    """Positions of the entries that the block attended to."""
    scores: Scores | None
    """None if nothing had to be evicted."""
    protected: Marks | None
    """Protected entries; None if nothing had to be evicted, or nothing was protected."""
    copied: Callable[[], LayerCache]

    @cached_property
    def cache(self) -> LayerCache:
        """The cache after the step; ask for it before the next step begins."""
        return self.copied()


Watch = Callable[[Block, StepResult], None]
"""Called after every step of every layer that is compressed."""


@dataclass(eq=False)
class Step:
    """A block that the layers of a group are given one after the other."""

    clock: BatchClock
    """Of all rows of the cache."""
    due: list[bool]
    reads: bool
    """Whether the score is given attention of the block now."""
    waits: bool
    """Whether the score observes the token later."""
    reused: Int[Tensor, "L NG"] | None = None
    """Slots of the vacant entries that a token overwrites; None if it has slots at the end."""
    view: LayerView | None = None
    """The entries as a single layer reads them."""
    observed: bool = False
    """Whether the score has observed a long block already, part by part."""
    numbers: list[int] = field(default_factory=list)
    """Numbers of the layers in the model."""
    blocks: list[Block] = field(default_factory=list)
    queries: list[Queries] = field(default_factory=list)
    outputs: list[Queries] = field(default_factory=list)
    attended: list[Attended] = field(default_factory=list)


class Group:
    """One layer, or several that share a cache."""

    def __init__(self, policy: Policy, cache: LayerCache) -> None:
        self.policy, self.cache = policy, cache
        self.count = cache.layers
        self.waiting: list[Step] = []
        """Tokens that the score has not observed yet."""
        self.step: Step | None = None
        self.prompt: Tensor | None = None

    def close_step(self) -> None:
        """End the step; if the score observes it later, its queries are kept."""
        step, self.step = self.step, None
        assert step is not None
        step.blocks, step.view, step.outputs, step.attended = step.blocks[-1:], None, [], []

    def clock_of_all_rows(self, clock: BatchClock) -> BatchClock:
        """Return the clock of all rows of the cache."""
        if self.count == 1:
            return clock
        if self.prompt is None:
            self.prompt = clock.prompt.repeat(self.count, 1, 1)
        positions = clock.positions.expand(self.count, *clock.positions.shape).flatten(0, 1)
        return BatchClock(clock.rows * self.count, positions, self.prompt)

    def catch_up(self) -> None:
        """Let the score observe the tokens that wait, as one block."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        tokens, last, cache = len(waiting), waiting[-1], self.cache
        layers = zip(*(step.queries for step in waiting), strict=True)
        queries = joined([torch.cat(layer, dim=3) for layer in layers])
        positions = torch.cat([step.clock.positions for step in waiting], dim=1)
        rows = tuple(replace(row, block=tokens) for row in last.clock.rows)
        clock = BatchClock(rows, positions, last.clock.prompt)
        seen = self.observation(last, clock, queries)
        for part in parts(queries, len(cache)):
            weights = logits(queries[:, :, :, part], seen.keys, seen.view.softcap)
            weights = softmax(weights, visible(positions[:, part], cache.positions))
            self.policy.score.observe(cache.state, seen.part(part, Attended(weights)))

    def observation(self, step: Step, clock: BatchClock, queries: Queries) -> Observation:
        """Return what tokens of all layers see; ``step`` is the last of them."""
        block = step.blocks[-1]
        given = [each.hidden_states for each in step.blocks if each.hidden_states is not None]
        return Observation(
            clock=clock,
            numbers=step.numbers,
            layers=block.layers,
            queries=queries,
            query_positions=clock.positions,
            view=step.view or LayerView(self.cache, block.softcap),
            confidence=block.confidence,
            hidden_states=joined(given).to(queries.dtype) if given else None,
        )


def joined(layers: Sequence[Tensor]) -> Tensor:
    """Join tensors along the batch axis; one alone is not copied."""
    return layers[0] if len(layers) == 1 else torch.cat(list(layers))


class Layers:
    """The layers of a model that a policy compresses, in groups."""

    def __init__(self, policy: Policy, count: int, watch: Watch | None = None) -> None:
        self.policy, self.count, self.watch = policy, count, watch
        self.groups = [Group(policy, policy.empty_cache()) for _ in range(count)]
        """One for every layer, or one for all of them."""
        self.shared = False
        """Whether all layers share a cache now."""
        self._asks_again = 0

    def arrange(self, clock: BatchClock) -> None:
        """Let the layers share a cache for a block, or have one each, as it needs."""
        single = clock.positions.shape[1] == 1
        if self.shared and (not single or not self._alike()):
            self.catch_up()
            self.take(self.copies())
        elif single and not self.shared and self._can_share(clock):
            self.catch_up()
            self.groups, self.shared = [Group(self.policy, LayerCache.joined(self.caches))], True

    def _alike(self) -> bool:
        """Say whether all layers that share a cache have equally many entries.

        If not, the cache has room in every layer for as many as the fullest one has.
        """
        (cache,) = self.caches
        return cache.counts == cache.counts[: cache.sequences] * cache.layers

    def _can_share(self, clock: BatchClock) -> bool:
        """Say whether these layers can share a cache from now on.

        They can if the policy is plain and decides within `SOON` tokens, and if all layers have
        equally many entries.
        """
        first, now = self.caches[0], clock.rows[0]
        if not self.policy.is_plain or not first.counts or now.seen < self._asks_again:
            return False
        later = (replace(now, seen=now.seen + ahead) for ahead in range(SOON))
        if not any(self.policy.schedule.due(token) for token in later):
            self._asks_again = now.seen + SOON
            return False
        return self.count > 1 and all(
            cache.counts == first.counts and cache.columns.layout == first.columns.layout
            for cache in self.caches
        )

    # --- what users ask ---

    @property
    def caches(self) -> list[LayerCache]:
        """One for every layer, or one that all layers share."""
        return [group.cache for group in self.groups]

    @property
    def kept(self) -> list[tuple[int, ...]]:
        """Entries per head of each sequence, for every layer."""
        return [c.counts[: c.sequences] for c in self.caches for _ in range(c.layers)]

    @property
    def fewest(self) -> list[int]:
        """Entries per head of each sequence where a layer has the fewest, without demoted ones."""
        caches, sequences = self.caches, self.caches[0].sequences
        kept = [a - b for c in caches for a, b in zip(c.counts, c.demoted, strict=True)]
        return [min(kept[row::sequences]) for row in range(sequences)]

    @without_autocast()
    def copies(self) -> list[LayerCache]:
        """Return a copy of every layer's cache."""
        return [cache.copied(layer) for cache in self.caches for layer in range(cache.layers)]

    @without_autocast()
    def copied(self) -> "Layers":
        """Return layers that hold the same and go on apart from these."""
        self.catch_up()
        other = copy(self)
        other.take(self.copies())
        return other

    def take(self, caches: Sequence[LayerCache]) -> None:
        """Let every layer have one of these caches to itself."""
        self.groups = [Group(self.policy, cache) for cache in caches]
        self.shared = False

    @property
    def end_together(self) -> bool:
        """Whether the layers end a step together, after the last of them."""
        return self.shared or self.policy.joins_layers

    def catch_up(self) -> None:
        """Let the score observe the tokens that wait."""
        for group in self.groups:
            group.catch_up()

    @without_autocast()
    def trim(self) -> None:
        """Free the slots that no entry uses."""
        self.catch_up()
        for cache in self.caches:
            cache.settle()
            cache.columns.trim()

    def memory(self) -> list[LayerMemory]:
        """Bytes that each layer has allocated; waiting queries are state."""
        found = []
        for group in self.groups:
            layer = group.cache.memory()
            queries = sum(x.nbytes for step in group.waiting for x in step.queries)
            layer = replace(layer, state=layer.state + queries // group.count)
            found += [layer] * group.count
        return found

    def check(self) -> None:
        """Raise ValueError if a score was NaN so far. Waits for the device."""
        for cache in self.caches:
            if cache.lowest_scores is not None and cache.lowest_scores.isnan().any():
                raise ValueError(
                    "scores must not be NaN: the model's keys or values are no numbers"
                )

    @without_autocast()
    def map_rows(self, change: Callable[[Tensor], Tensor], order: Sequence[int]) -> None:
        """Apply one change of the batch axis; ``order`` is the same change as indices."""
        for group in self.groups:
            group.catch_up()
            if group.cache.counts:
                group.cache.map_rows(change, order)
            group.prompt = None
