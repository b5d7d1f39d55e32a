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
from typing import Any

import torch

from kvlab.fast.engine.cache import BatchClock, LayerCache, LayerMemory
from kvlab.fast.engine.long_blocks import observe
from kvlab.fast.engine.number_formats import without_autocast
from kvlab.fast.engine.observation import Attended, LayerView, Observation, Rotate
from kvlab.fast.engine.policy import Policy
from kvlab.fast.kernels.notation import Float, Int, Marks, Positions, Queries, Scores, Tensor
from kvlab.reference.observation import Clock
from kvlab.reference.slots import MOST_SLACK

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
    rotate: Rotate | None = None
    """For ``reposition``, and for scores that read it."""
    softcap: float | None = None
    """Bound of the model's attention logits, if it has one."""
    hidden_states: Float[Tensor, "N m D"] | None = None
    """What the model projects to queries, keys and values, if the score reads it."""
    layers: int = 1
    """Layers of the model."""
    model: Any = None
    """The model, if the score reads hidden states."""
    projection: Float[Tensor, "G rho d D"] | None = None
    """The layer's output projection, cut by query heads, if the score reads it."""


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
    blocks: list[Block] = field(default_factory=list)
    queries: list[Queries] = field(default_factory=list)
    outputs: list[Queries] = field(default_factory=list)
    attended: list[Attended] = field(default_factory=list)


class Group:
    """One layer, or several that share a cache."""

    ALIKE = ("policy", "step", "waiting", "prompt")

    def __init__(self, policy: Policy, cache: LayerCache) -> None:
        self.policy, self.cache = policy, cache
        self.step: Step | None = None
        """The step that has begun."""
        self.waiting: list[Observation] = []
        """What tokens saw that the score has not observed yet."""
        self.prompt: Tensor | None = None
        """As in `BatchClock`, for all rows of the cache."""

    def catch_up(self) -> None:
        """Let the score observe the tokens that wait, as one block."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        queries = torch.cat([seen.queries for seen in waiting], dim=3)
        positions = torch.cat([seen.query_positions for seen in waiting], dim=1)
        rows = [replace(row, block=len(waiting)) for row in waiting[-1].clock.rows]
        clock = waiting[-1].clock.of_block(rows, positions)
        given = {"clock": clock, "given_queries": queries, "query_positions": positions, "memo": {}}
        observe(self.policy, replace(waiting[-1], **given))


class Layers:
    """The layers of a model that a policy compresses, in groups."""

    ALIKE = ("policy", "count", "watch", "shared", "aging", "_asks_again")

    def __init__(self, policy: Policy, count: int, watch: Watch | None = None) -> None:
        self.policy, self.count, self.watch = policy, count, watch
        self.groups = [Group(policy, policy.empty_cache()) for _ in range(count)]
        """One for every layer, or one for all of them."""
        self.shared = False
        """Whether all layers share a cache now."""
        self.aging: list[LayerCache] = []
        """Caches that this step has still to store as the age of their entries says."""
        self._asks_again = 0

    def share_or_separate(self, clock: BatchClock) -> None:
        """Choose, before a block is given to the layers, whether they share a cache.

        They share one for single tokens, if they can (`can_share`), and have their own for blocks.
        They also part where the cache is uneven: a budget that differs from layer to layer left
        unequally many entries, and each layer would have room for the most
        (`LayerCache.even`). From then on `can_share` says no, until they have equally many again.
        """
        single = clock.positions.shape[1] == 1
        if not self.shared:
            if single:
                self.join(clock)
        elif not (single and self.groups[0].cache.even):
            self.separate()

    def join(self, clock: BatchClock) -> None:
        """Let all layers share a cache from a single token on, if they can."""
        if self.can_share(clock.rows[0]):
            self.catch_up()
            self.groups, self.shared = [Group(self.policy, LayerCache.joined(self.caches))], True

    def separate(self) -> None:
        """Let every layer have a cache of its own again."""
        self.catch_up()
        self.take(self.copies())

    def can_share(self, now: Clock) -> bool:
        """Say whether these layers can share a cache from now on.

        They can if the policy is plain and decides within `SOON` tokens, and if all layers have
        equally many entries. ``now`` is the clock of a sequence after the next token.
        """
        first = self.caches[0]
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
        self.shared, self.aging = False, []

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
            queries = sum(seen.queries.nbytes for seen in group.waiting)
            layer = replace(layer, state=layer.state + queries // group.cache.layers)
            found += [layer] * group.cache.layers
        return found

    def check(self) -> None:
        """Raise ValueError if a score was NaN so far. Waits for the device."""
        for cache in self.caches:
            cache.check_scores()

    @without_autocast()
    def map_rows(self, change: Callable[[Tensor], Tensor], order: Sequence[int]) -> None:
        """Apply one change of the batch axis; ``order`` is the same change as indices."""
        for group in self.groups:
            group.catch_up()
            if group.cache.counts:
                group.cache.map_rows(change, order)
            group.prompt = None
