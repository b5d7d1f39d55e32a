"""The layers of a model that a policy compresses: each in a cache of its own, or all in one.

A prompt goes through the model layer by layer, and its attention is large: every layer decides for
itself. While single tokens are generated, layers share a cache where they can (`Group`).
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace

from torch import Tensor

from kvlab.fast.engine.ambient import without_autocast
from kvlab.fast.engine.batch import BatchClock
from kvlab.fast.engine.cache import LayerCache, LayerMemory
from kvlab.fast.engine.group import Group
from kvlab.fast.engine.policy import Policy
from kvlab.fast.engine.step import Block, Watch
from kvlab.fast.kernels.notation import Queries
from kvlab.fast.kernels.vector_tables import MOST_SLACK

SOON = 2 * MOST_SLACK
"""Layers share a cache only if a decision is due within this many tokens."""


class Layers:
    """The layers of a model that a policy compresses, in groups."""

    def __init__(self, policy: Policy, count: int, watch: Watch | None = None) -> None:
        self.policy, self.count, self.watch = policy, count, watch
        self.groups = [Group(policy, policy.empty_cache(), watch) for _ in range(count)]
        """One for every layer, or one for all of them."""
        self.shared = False
        """Whether all layers share a cache now."""
        self._asks_again = 0

    @without_autocast()
    def begin(self, clock: BatchClock) -> None:
        """Take in that all layers are about to be given a block."""
        single = clock.positions.shape[1] == 1
        if self.shared and (not single or not self._alike()):
            self.catch_up()
            self.take(self.copies())
        elif single and not self.shared and self._can_share(clock):
            self.catch_up()
            cache = LayerCache.joined(self.caches)
            self.groups, self.shared = [Group(self.policy, cache, self.watch)], True
        if self.shared:
            self.groups[0].begin(clock.to(self.caches[0].positions.device))

    @without_autocast()
    def attend(self, place: int, block: Block) -> Queries:
        """Take the block of the layer ``place`` among these, and return its attention output."""
        if self.shared:
            return self.groups[0].attend(place, block)
        group = self.groups[place]
        group.begin(block.clock)
        group.attend(0, block)
        return group.finish()

    @without_autocast()
    def finish(self) -> None:
        """End the block: layers that share a cache observe, decide and apply the decision."""
        if self.shared:
            self.groups[0].finish()

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
        self.groups = [Group(self.policy, cache, self.watch) for cache in caches]
        self.shared = False

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
