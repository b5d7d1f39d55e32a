"""The worker's side: what every request has kept, and what its score remembers.

Queries wait until a block is full or a decision is due; then the score observes them at once, and
keys and values are read from vLLM's blocks for that alone. The layers of a request are the batch
axis of the engine's cache, and decide together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch.nn.functional import pad
from vllm.distributed import tensor_model_parallel_all_gather as all_gather

from kvlab.fast.engine.cache import BatchClock, LayerCache
from kvlab.fast.engine.observation import Attended, LayerView, Observation, parts
from kvlab.fast.engine.step import apply, decide
from kvlab.fast.kernels.attention import logits, softmax, visible, weighted_values
from kvlab.fast.kernels.notation import Float, Int, Queries, Tensor, Vectors
from kvlab.fast.vllm.blocks import Layout
from kvlab.fast.vllm.settings import Settings, UnsupportedError
from kvlab.reference.observation import Clock


@dataclass(frozen=True)
class Place:
    """Where a request stands in a step, as the scheduler says."""

    request_id: str
    turn: int
    """How often the request was preempted."""
    prompt: int
    seen: int
    """Tokens after this step, of which ``tokens`` are new."""
    tokens: int
    last: int
    """Tokens at most, when the request ends."""


@dataclass(eq=False)
class Request:
    """What a request has kept, and what its score remembers of it."""

    turn: int
    observed: int
    """Tokens that the score has observed, or need not."""
    evicted: set[int] = field(default_factory=set)
    """Numbers of blocks in the request."""
    waiting: list[tuple["Batch", int, int]] = field(default_factory=list)
    """Steps whose queries the score has not observed, with the rows that are this request's."""
    layers: list[tuple[dict[str, Tensor], dict[str, Any]]] = field(default_factory=list)
    """Columns of the kept entries and what is remembered of the stream, for each cache."""

    def kept(self, seen: int, block: int) -> list[int]:
        """Return the numbers of the blocks that are kept, of a text of ``seen`` tokens."""
        return [number for number in range(-(-seen // block)) if number not in self.evicted]


class Requests:
    """All requests of a worker, in the layers of a table; ``every`` has those of the model."""

    def __init__(self, settings: Settings, layers: Sequence[str], every: Sequence[str]) -> None:
        self.settings, self.of_model = settings, len(every)
        self.numbers = [number for number, name in enumerate(every) if name in layers]
        """Of the layers in the model."""
        self.layers = {every[number]: place for place, number in enumerate(self.numbers)}
        self.requests: dict[str, Request] = {}
        self.evictions: list[tuple[str, int, tuple[int, ...]]] = []
        """Request, turn and numbers of blocks that the scheduler has not been told."""
        self.caches: Mapping[str, Tensor] = {}
        self.layout: Any = None
        self.places: Mapping[int, Place] | None = None
        self._batch: tuple[Any, Batch | None] = (None, None)

    def begin(self, places: Mapping[int, Place], ended: set[str]) -> None:
        """Begin a step; ``places`` has every request by the block that it writes its last token to.

        That block is its own in this step: blocks that are shared are full.
        """
        for request_id in ended:
            self.requests.pop(request_id, None)
        self.places = places

    def batch(self, metadata: Any) -> "Batch | None":
        """Return the batch of a step, the same for all layers; None outside of steps."""
        if not self.places:
            return None
        if self._batch[0] is not metadata:
            self._batch = (metadata, Batch(self, metadata))
        return self._batch[1]

    def end(self) -> list[tuple[str, int, tuple[int, ...]]]:
        """End a step, and return what was evicted in it."""
        self.places, self._batch = None, (None, None)
        found, self.evictions = self.evictions, []
        return found


class Batch:
    """The requests of one step, as attention computes them."""

    def __init__(self, requests: Requests, metadata: Any) -> None:
        builder, common = metadata.kvlab
        self.all, self.block = requests, requests.settings.block
        if builder.kv_cache_spec.block_size != self.block:
            raise UnsupportedError("kvlab: the kernel must read blocks as large as vLLM's")
        if builder.settings != requests.settings:
            raise UnsupportedError("kvlab: another engine of this process was configured otherwise")
        self.tokens = common.num_actual_tokens
        self.table = common.block_table_tensor
        starts = common.query_start_loc_cpu.tolist()
        bounds = [each for each in pairwise(starts) if each[0] < each[1]]
        self.rows = [self._row(common.slot_mapping, *each) for each in bounds]
        self.metadata = metadata
        if any(request.evicted for _, request, _, _ in self.rows):
            self.metadata = builder.build_again(common, **self._without_evicted(common))
        self.queries: Float[Tensor, "L tokens H d"] | None = None
        self.attended_layers = 0

    def _row(self, slots: Tensor, start: int, end: int) -> tuple[Place, Request, int, int]:
        place = (self.all.places or {}).get(int(slots[end - 1]) // self.block)
        if place is None or place.tokens != end - start:
            raise RuntimeError("kvlab: vLLM's batch holds a request that was not scheduled")
        request = self.all.requests.get(place.request_id)
        if request is None or request.turn != place.turn:
            request = Request(place.turn, place.seen - place.tokens)
            self.all.requests[place.request_id] = request
        return place, request, start, end

    def _without_evicted(self, common: Any) -> dict[str, Any]:
        """Return the table of blocks, and the lengths, without what was evicted."""
        table, lengths = self.table.clone(), common.seq_lens.clone()
        for row, (place, request, _, _) in enumerate(self.rows):
            if request.evicted:
                kept = request.kept(place.seen, self.block)
                table[row, : len(kept)] = self.table[row, kept]
                lengths[row] = place.seen - self.block * len(request.evicted)
        changed = {"block_table_tensor": table, "seq_lens": lengths}
        changed["_num_computed_tokens_cache"] = None
        if common.seq_lens_cpu_upper_bound is not None:
            changed["seq_lens_cpu_upper_bound"] = lengths.cpu()
        return {**changed, "max_seq_len": int(lengths.max())}

    def attended(self, attention: Any, layer: Any, query: Float[Tensor, "tokens H d"]) -> None:
        """Note the queries of a layer; after the last one, let scores observe and decide."""
        number, requests = self.all.layers[layer.layer_name], self.all
        if requests.layout is None:
            requests.layout = Layout.found(attention, layer, requests.caches[layer.layer_name])
        if requests.settings.remembers or requests.settings.policy.needs.rows != "none":
            query = query[: self.tokens].view(self.tokens, attention.num_heads, -1)
            if self.queries is None:
                self.queries = query.new_empty((len(requests.layers), *query.shape))
            self.queries[number] = query
            if (factor := attention.scale * query.shape[-1] ** 0.5) != 1:
                self.queries[number] *= factor
        self.attended_layers += 1
        if self.attended_layers == len(requests.layers):
            softcap = getattr(attention, "logits_soft_cap", None) or None
            for row, (place, *_) in enumerate(self.rows):
                if -(-place.last // self.block) > requests.settings.blocks:  # else it ends before
                    Turn(self, row, softcap).take()


class Turn:
    """What is done about one request when all layers have attended."""

    def __init__(self, batch: Batch, row: int, softcap: float | None) -> None:
        self.requests, self.table, self.softcap = batch.all, batch.table[row], softcap
        self.place, self.request, start, end = batch.rows[row]
        self.request.waiting.append((batch, start, end))
        self.settings, self.policy = batch.all.settings, batch.all.settings.policy
        self.clocks: dict[tuple[int, int, int], BatchClock] = {}
        """One for all layers, which share what they compute from it."""

    def take(self) -> None:
        """Observe and decide, if it is time."""
        place, settings, request = self.place, self.settings, self.request
        schedule, remembers = settings.specification.schedule, settings.remembers
        if place.seen < place.prompt:
            decides, observes = False, not self.policy.on_host
        else:
            reads = place.seen - place.tokens < place.prompt
            clock = Clock(place.seen, place.prompt if reads else place.tokens, place.prompt)
            over = len(request.kept(place.seen, settings.block)) > settings.blocks
            decides = over and schedule.due(clock)
            observes = reads or place.seen % settings.block == 0
            remembers = remembers and not schedule.ended(clock)
        if decides or (observes and remembers):
            self.observe(decides)
        if decides or observes or not remembers:
            request.waiting.clear()
            request.observed = place.seen

    def observe(self, decides: bool) -> None:
        """Let the score observe what waits, and decide."""
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
        size = len(layers) if self.policy.is_plain else 1
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
        kept = [(batch.queries, *rows) for batch, *rows in self.request.waiting]
        rows = [every[:, start:end] for every, start, end in kept if every is not None]
        if not rows:
            return keys.new_zeros((L, G, 1, self.place.seen - self.request.observed, d))
        return torch.cat(rows, dim=1).unflatten(2, (G, -1)).permute(0, 2, 3, 1, 4)

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield first and last token of the blocks in which the score observes what waits."""
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
        """Let the score observe what waits in some layers, and return what it saw last."""
        cache, queries, pieces = self.policy.empty_cache(), given[2], list(self.pieces())
        self.append(cache, given, positions, 0, pieces[0][0])
        cache.layers, cache.state.stream = len(queries), dict(remembered[1])
        for name, column in remembered[0].items():
            cache.columns[name].narrow(2, 0, column.shape[2]).copy_(column)
        found = []
        for start, end in pieces:
            self.append(cache, given, positions, start, end)
            last = queries.shape[3] - (self.place.seen - end)
            rows = queries[:, :, :, last - (end - start) : last]
            clock = self.clock(len(rows), start, end)
            found.append(self.observe_piece(cache, layers, rows, clock))
        return found[-1]

    def clock(self, layers: int, start: int, end: int) -> BatchClock:
        """Return the clock of tokens ``start`` to ``end``, for all layers."""
        device, key = self.table.device, (layers, start, end)
        if key not in self.clocks:
            row = Clock(end, end - start, self.place.prompt)
            positions = torch.arange(start, end, dtype=torch.int32, device=device)
            prompt = torch.full((layers, 1, 1), row.prompt, dtype=torch.int32, device=device)
            self.clocks[key] = BatchClock((row,) * layers, positions.expand(layers, -1), prompt)
        return self.clocks[key]

    def append(
        self, cache: LayerCache, given: Any, positions: Int[Tensor, " n"], start: int, end: int
    ) -> None:
        """Append the entries of tokens ``start`` to ``end`` to the cache of all layers."""
        of_block = (positions >= start) & (positions < end)
        keys, values, own = given[0][:, :, of_block], given[1][:, :, of_block], positions[of_block]
        if len(own):
            clock = self.clock(len(keys), 0, len(own))
            cache.append(keys, values, replace(clock, positions=own.expand(len(keys), -1), memo={}))

    def observe_piece(
        self, cache: LayerCache, layers: slice, queries: Queries, clock: BatchClock
    ) -> Observation:
        """Let the score observe tokens whose entries are the last ones."""
        policy = self.policy
        seen = Observation(
            clock=clock,
            numbers=self.requests.numbers[layers],
            layers=self.requests.of_model,
            given_queries=queries.to(cache.dtype),
            query_positions=clock.positions,
            view=LayerView(cache, self.softcap),
            confidence=queries.new_full((1, clock.rows[0].seen), torch.nan),
        )
        rows = policy.reads(clock)
        if rows == "all" and not policy.on_host:
            for part in parts(seen.queries, 4 * len(cache)):  # as large as the allocator reuses
                seen.attended = self.attention(seen, part)
                policy.score.observe(cache.state, seen.part(part, seen.attended))
            return seen
        if rows != "none":
            seen.attended = self.attention(seen, slice(None if rows == "all" else -1, None))
            if policy.needs.output:
                seen.attended.output = weighted_values(seen.attention, seen.values)
        policy.score.observe(cache.state, seen)
        return seen

    def attention(self, seen: Observation, rows: slice) -> Attended:
        """Return what some of the queries, which are those of the last entries, pay every entry."""
        first, stop, _ = rows.indices(seen.queries.shape[3])
        later = seen.queries.shape[3] - stop
        read = slice(seen.keys.shape[2] - later)
        own = seen.positions[:, :, read][:, :, first - stop :]
        products = logits(seen.queries[:, :, :, rows], seen.keys[:, :, read], self.softcap)
        paid = softmax(products, visible(seen.query_positions[:, rows], own))
        return Attended(pad(paid, (0, later)))

    def decide(self, every: list[Observation]) -> None:
        """Decide in the layers of the table together, and evict."""
        block, place = self.settings.block, self.place
        for seen in every:
            due = [True] * len(seen.clock.rows)
            apply(self.policy, seen, decide(self.policy, seen, due, every))
            lowest = seen.cache.lowest_scores
            if lowest is not None and lowest.isnan().any():
                raise ValueError(f"scores must not be NaN: {self.settings.method} gave one")
        stay = set((every[0].cache.positions[0, 0] // block).tolist())
        evicted = tuple(n for n in self.request.kept(place.seen, block) if n not in stay)
        self.request.evicted.update(evicted)
        self.requests.evictions.append((place.request_id, place.turn, evicted))
