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
    """Let the scores of all requests observe and decide, except of those that end before.

    A request whose method fails ends; the others go on. What was decided comes from the device at
    once, for all requests.
    """
    decided, requests = [], batch.all
    for row, (place, request, _) in enumerate(batch.rows):
        if request.failed or -(-place.last // batch.block) <= requests.settings.blocks:
            continue
        try:
            turn = Turn(batch, row, softcap)
            turn.take()
        except Exception as error:
            requests.fail(place, error)
        else:
            decided += [turn] if turn.decided is not None else []
    if not decided:
        return
    numbers = torch.cat([turn.decided for turn in decided]).tolist()  # the second wait
    for turn in decided:
        (wrong, *stay), numbers = numbers[: len(turn.decided)], numbers[len(turn.decided) :]
        if wrong:
            requests.fail(turn.place, "a score is NaN: the model's keys or values are no numbers")
        else:
            turn.evict({*stay})


class Turn:
    """What is done about one request when all layers have attended."""

    def __init__(self, batch: Batch, row: int, softcap: float | None) -> None:
        self.requests, self.table, self.softcap = batch.all, batch.table[row], softcap
        self.place, self.request, tokens = batch.rows[row]
        self.new = [] if batch.queries is None else [batch.queries[:, tokens]]
        """Queries of this step, in the batch; nothing if the score reads none."""
        self.kept = self.request.kept(self.place.seen, batch.block)
        self.decided: Int[Tensor, " n"] | None = None
        """Whether a score was NaN, and the numbers of the blocks that every entry kept is in."""
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
            decides = len(self.kept) > settings.blocks and schedule.due(clock)
            observes = prefilled or place.seen % settings.block == 0
            remembers = remembers and not schedule.ended(clock)
        if decides or (observes and remembers):
            self.observe(decides)
        if decides or observes or not remembers:
            request.waiting.clear()
            request.observed = place.seen
        else:
            request.waiting += [queries.clone() for queries in self.new]

    def observe(self, decides: bool) -> None:
        """Let the score observe what waits; decide, and keep what it remembers of the rest."""
        place, block, device = self.place, self.settings.block, self.table.device
        ranges = [torch.arange(n * block, min((n + 1) * block, place.seen)) for n in self.kept]
        positions = torch.cat(ranges).to(device, torch.int32)
        layout, layers = self.requests.layout, self.requests.layers
        ids = self.table[torch.tensor(self.kept, device=device)].long()
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
        if not self.new:
            return keys.new_zeros((L, G, 1, self.place.seen - self.request.observed, d))
        waiting = torch.cat([*self.request.waiting, *self.new], dim=1)
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

    def before(self, token: int) -> int:
        """Return how many kept entries come before a token."""
        block = self.settings.block
        return sum(min(block, max(0, token - n * block)) for n in self.kept)

    def append(
        self, cache: LayerCache, given: Any, positions: Int[Tensor, " n"], start: int, end: int
    ) -> None:
        """Append the entries of tokens ``start`` to ``end`` to the cache of all layers."""
        of_block = slice(self.before(start), self.before(end))
        keys, values, own = given[0][:, :, of_block], given[1][:, :, of_block], positions[of_block]
        if len(own):
            clock = self.clock(len(keys), 0, len(own))  # of equally many tokens: others may be gone
            cache.append(keys, values, clock.of_block(clock.rows, own.expand(len(keys), -1)))

    def decide(self, every: list[Observation]) -> None:
        """Decide in the layers of the table together; what stays is on the device."""
        for seen in every:
            due = [True] * len(seen.clock.rows)
            apply(self.policy, seen, decide(self.policy, seen, due, every))
        marks = [seen.cache.nan_if_any for seen in every if seen.cache.nan_if_any is not None]
        blocks = every[0].cache.positions[0, 0] // self.settings.block
        wrong = sum((each.isnan().any().view(1) for each in marks), blocks.new_zeros(1))
        self.decided = torch.cat([wrong, blocks])

    def evict(self, stay: set[int]) -> None:
        """Evict all blocks but some."""
        evicted = tuple(n for n in self.kept if n not in stay)
        self.request.evicted.update(evicted)
        self.requests.evictions.append((self.place.request_id, self.place.preemptions, evicted))
