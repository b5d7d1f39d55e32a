"""What is done about a request when all layers have attended: its score observes, and it evicts.

Queries wait until a block is full or a decision is due; then the score observes them at once, and
keys and values are read from vLLM's blocks for that alone. The layers of a request are the batch
axis of the engine's cache, and decide together. Observing, rating and deciding are the engine's.
"""

from collections.abc import Iterator
from typing import Any

import torch
from vllm.distributed import tensor_model_parallel_all_gather as all_gather

from kvlab.fast.engine.cache import BatchClock, LayerCache
from kvlab.fast.engine.long_blocks import observe
from kvlab.fast.engine.observation import LayerView, Observation
from kvlab.fast.engine.step import apply, decide
from kvlab.fast.kernels.notation import Int, Queries, Tensor, Vectors
from kvlab.fast.vllm.requests import Batch
from kvlab.reference.observation import Clock

SHARE = 4
"""Parts of a prompt are this much smaller than the engine's: as large as the allocator reuses."""


def take_turns(batch: Batch, softcap: float | None) -> None:
    """Let the scores of all requests observe and decide, except of those that end before."""
    for row, (place, *_) in enumerate(batch.rows):
        if -(-place.last // batch.block) > batch.all.settings.blocks:
            Turn(batch, row, softcap).take()


class Turn:
    """What is done about one request when all layers have attended."""

    def __init__(self, batch: Batch, row: int, softcap: float | None) -> None:
        self.requests, self.table, self.softcap = batch.all, batch.table[row], softcap
        self.place, self.request, tokens = batch.rows[row]
        if batch.queries is not None:
            self.request.waiting.append(batch.queries[:, tokens])
        self.settings, self.policy = batch.all.settings, batch.all.settings.policy
        self.clocks: dict[tuple[int, int, int], BatchClock] = {}
        """One for all layers, which share what they compute from it."""

    def take(self) -> None:
        """Observe and decide, if it is time.

        A score that remembers nothing observes only what it decides about. The others observe a
        prompt piece by piece as vLLM gives it, but on the host at its end, and then every block.
        """
        place, settings, request = self.place, self.settings, self.request
        schedule, remembers = settings.specification.schedule, settings.remembers
        if place.seen < place.prompt:
            decides, observes = False, not self.policy.on_host
        else:
            prefilled = place.seen - place.tokens < place.prompt  # for the schedule, in one block
            clock = Clock(place.seen, place.prompt if prefilled else place.tokens, place.prompt)
            over = len(request.kept(place.seen, settings.block)) > settings.blocks
            decides = over and schedule.due(clock)
            observes = prefilled or place.seen % settings.block == 0
            remembers = remembers and not schedule.ended(clock)
        if decides or (observes and remembers):
            self.observe(decides)
        if decides or observes or not remembers:
            request.waiting.clear()
            request.observed = place.seen

    def observe(self, decides: bool) -> None:
        """Let the score observe what waits; decide, and keep what it remembers of the rest."""
        place, block = self.place, self.settings.block
        kept = self.request.kept(place.seen, block)
        positions = torch.cat([torch.arange(n * block, (n + 1) * block) for n in kept])
        positions = positions[positions < place.seen].to(self.table.device, torch.int32)
        layout, layers = self.requests.layout, self.requests.layers
        ids = self.table[torch.tensor(kept, device=self.table.device)].long()
        caches = [self.requests.caches[name] for name in layers]
        keys, values = layout.read(caches, ids, len(positions))
        heads = (keys, values, self.queries(keys))  # of this rank
        keys, values, queries = (all_gather(x.contiguous(), dim=1) for x in heads)
        size = len(layers) if self.policy.is_plain else 1  # of a cache, as in the engine
        groups = [slice(first, first + size) for first in range(0, len(layers), size)]
        remembered = self.request.layers or [({}, {})] * len(groups)
        seen = [
            self.observe_layers(group, (keys[group], values[group], queries[group]), positions, old)
            for group, old in zip(groups, remembered, strict=True)
        ]
        if decides:
            self.decide(seen)
        names = tuple(self.policy.score.columns)
        self.request.layers = [
            ({name: each.cache.columns[name].clone() for name in names}, each.cache.state.stream)
            for each in seen
        ]

    def queries(self, keys: Vectors) -> Queries:
        """Return the queries that wait, of all layers; zeros if no score reads them."""
        L, G, _, d = keys.shape
        if not self.request.waiting:
            return keys.new_zeros((L, G, 1, self.place.seen - self.request.observed, d))
        waiting = torch.cat(self.request.waiting, dim=1)
        return waiting.unflatten(2, (G, -1)).permute(0, 2, 3, 1, 4)

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield where the blocks begin and end in which the score observes what waits.

        That is the newest token, if it remembers nothing of the others; all at once, or, where it
        cannot observe tokens after the prompt together, each of these tokens.
        """
        first, seen, needs = self.request.observed, self.place.seen, self.policy.needs
        if not self.settings.remembers:
            yield seen - 1, seen
        elif seen <= self.place.prompt or needs.may_wait or needs.rows != "all":
            yield first, seen
        else:
            yield from ((token, token + 1) for token in range(first, seen))

    def observe_layers(
        self,
        layers: slice,
        given: tuple[Vectors, Vectors, Queries],
        positions: Int[Tensor, " n"],
        remembered: tuple[dict[str, Tensor], dict[str, Any]],
    ) -> Observation:
        """Let the score observe what waits in some layers, and return what it saw last.

        The cache is made anew: what was observed already, with what is remembered of it, then the
        blocks that wait.
        """
        cache, pieces, (_, _, queries) = self.policy.empty_cache(), list(self.pieces()), given
        columns, stream = remembered
        self.append(cache, given, positions, 0, pieces[0][0])
        cache.layers, cache.state.stream = len(queries), dict(stream)
        for name, column in columns.items():
            cache.columns[name].narrow(2, 0, column.shape[2]).copy_(column)
        found = []
        for start, end in pieces:
            self.append(cache, given, positions, start, end)
            last = queries.shape[3] - (self.place.seen - end)
            clock = self.clock(len(queries), start, end)
            seen = Observation(
                clock=clock,
                numbers=self.requests.numbers[layers],
                layers=self.requests.of_model,
                given_queries=queries[:, :, :, last - (end - start) : last].to(cache.dtype),
                query_positions=clock.positions,
                view=LayerView(cache, self.softcap),
                confidence=queries.new_full((1, end), torch.nan),
            )
            observe(self.policy, seen, SHARE)
            found.append(seen)
        return found[-1]

    def clock(self, layers: int, start: int, end: int) -> BatchClock:
        """Return the clock of tokens ``start`` to ``end``, for all layers."""
        key = layers, start, end
        if key not in self.clocks:
            row = Clock(end, end - start, self.place.prompt)
            self.clocks[key] = BatchClock.of([row] * layers, self.table.device)
        return self.clocks[key]

    def append(
        self, cache: LayerCache, given: Any, positions: Int[Tensor, " n"], start: int, end: int
    ) -> None:
        """Append the entries of tokens ``start`` to ``end`` to the cache of all layers."""
        of_block = (positions >= start) & (positions < end)
        keys, values, own = given[0][:, :, of_block], given[1][:, :, of_block], positions[of_block]
        if len(own):
            clock = self.clock(len(keys), 0, len(own))  # of equally many tokens: others may be gone
            cache.append(keys, values, clock.of_block(clock.rows, own.expand(len(keys), -1)))

    def decide(self, every: list[Observation]) -> None:
        """Decide in the layers of the table together, and evict."""
        block, place = self.settings.block, self.place
        for seen in every:
            due = [True] * len(seen.clock.rows)
            apply(self.policy, seen, decide(self.policy, seen, due, every))
            seen.cache.check_scores()
        stay = set((every[0].cache.positions[0, 0] // block).tolist())
        evicted = tuple(n for n in self.request.kept(place.seen, block) if n not in stay)
        self.request.evicted.update(evicted)
        self.requests.evictions.append((place.request_id, place.preemptions, evicted))
