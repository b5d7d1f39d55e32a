"""What a step consists of: attend and observe, decide who leaves, and apply the decision.

`kvlab.fast.engine.layers` calls these functions for one layer, or for several that share a cache.
Nothing in a step of decoding waits for the device: how many entries a sequence has, and how many
leave, follows from the clock alone. Where a method's rule depends on data (DesireKV spares doubtful
tokens), the host waits only at the steps where that method decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache as once
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.engine.attention import compute_dtype, softmax, visible, weighted_values
from kvlab.fast.engine.batch import BatchClock, KeepSet
from kvlab.fast.engine.cache import LayerCache
from kvlab.fast.engine.notation import Marks, Positions, Queries, Scores
from kvlab.fast.engine.observation import Attended, LayerView, Observation, attend_as_needed, parts
from kvlab.fast.engine.policy import Policy
from kvlab.fast.engine.selection import first_to_go
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.keep import keep_slots


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


@dataclass(eq=False)
class StepResult:
    """What one step of one layer produced, for `compress(watch=...)`: copies of it."""

    output: Queries
    positions: Positions
    """Positions of the entries that the block attended to."""
    scores: Scores | None
    """None if nothing had to leave."""
    safe: Marks | None
    copied: Callable[[], LayerCache]

    @cached_property
    def cache(self) -> LayerCache:
        """The cache after the step; ask for it before the next step begins."""
        return self.copied()


@dataclass(frozen=True)
class Decision:
    """Who leaves, and why."""

    scores: Scores | None
    """None if nothing has to leave."""
    safe: Marks | None
    keep: KeepSet | None = None
    evicted_slot: Int[Tensor, "N G 1"] | None = None
    """Slot of the one entry that leaves each head; None if more leave, which needs compaction."""


def attend(policy: Policy, cache: LayerCache, block: Block) -> tuple[Queries, Observation]:
    """Let the block's queries attend to all present entries, and the score observe it.

    A long block is attended in parts, so that its attention is never in memory as a whole.
    """
    seen, needs = _observation_of(policy, cache, block), policy.needs
    rows, m = needs.reads(block.clock), block.queries.shape[3]
    if m == 1:
        read = rows != "none"
        output, seen.attended = attend_as_needed(needs, read, seen.queries, None, seen.view)
        seen.newest_output = output[:, :, :, 0] if rows == "last" else None
        policy.score.observe(cache.state, seen)
        return output.to(block.keys.dtype), seen
    outputs, on_host = [], []
    if rows == "all":
        at_once = needs.only_sums and seen.view.triton
    else:
        at_once = seen.view.only_block and seen.view.softcap is None
    for part in [slice(0, m)] if at_once else parts(seen.queries, len(cache)):
        queries, positions = seen.queries[:, :, :, part], seen.query_positions[:, part]
        output, attended = attend_as_needed(needs, rows == "all", queries, positions, seen.view)
        outputs.append(output)
        if attended.weights is not None and needs.on_host:
            on_host.append(attended.weights.cpu())
        elif rows == "all":
            policy.score.observe(cache.state, seen.part(part, attended))
    if on_host:
        seen.attended = Attended(torch.cat(on_host, dim=3))
    if rows == "last":
        newest = seen.queries[:, :, :, -1:]
        output, seen.attended = attend_as_needed(needs, True, newest, None, seen.view)
        seen.newest_output = output[:, :, :, 0]
    if rows != "all" or needs.on_host:
        policy.score.observe(cache.state, seen)
    return torch.cat(outputs, dim=3).to(block.keys.dtype), seen


def _observation_of(policy: Policy, cache: LayerCache, block: Block) -> Observation:
    queries = block.queries.to(compute_dtype(block.keys.dtype))
    alone = len(cache) == queries.shape[3] == min(block.clock.present)
    seen = Observation(
        clock=block.clock,
        layer=block.layer,
        queries=queries,
        query_positions=block.clock.positions,
        cache=cache,
        view=view_of(cache, queries, block.softcap, alone),
        confidence=block.confidence,
    )
    if policy.specification.reposition:
        reposition(seen, block)
    return seen


def view_of(
    cache: LayerCache, queries: Queries, softcap: float | None, only_block: bool = False
) -> LayerView:
    """Return the entries of a cache as these queries read them."""
    return LayerView(
        column=once(lambda name: cache.column(name, queries.dtype)),
        dtype=queries.dtype,
        ragged=cache.ragged,
        triton=uses_triton(queries),
        softcap=softcap,
        only_block=only_block,
        in_tables=cache.mixed_entries,
    )


def reposition(seen: Observation, block: Block) -> None:
    """Rotate queries and keys to the index of their entry among the present ones."""
    if block.rotate is None:
        raise ValueError("reposition = True needs a model whose rotary embedding is known")
    positions = seen.positions
    places = torch.arange(positions.shape[-1], dtype=torch.int32, device=positions.device)
    index = torch.empty_like(positions).scatter_(
        -1, positions.argsort(dim=-1), places.expand_as(positions)
    )
    index = index - (positions < 0).sum(dim=-1, keepdim=True, dtype=torch.int32)
    entries = seen.present[:, :1].sum(dim=-1, keepdim=True, dtype=torch.int32)
    shift = (entries - seen.clock.seen)[..., None].expand(-1, 1, 1, seen.queries.shape[3])
    stored, rotated = seen.view, block.rotate(seen.keys, index - positions)
    seen.queries = block.rotate(seen.queries, shift)
    seen.view = LayerView(
        column=lambda name: rotated if name == "keys" else stored.column(name),
        dtype=stored.dtype,
        ragged=stored.ragged,
        triton=stored.triton,
        softcap=stored.softcap,
    )


def decide(policy: Policy, seen: Observation, due: Sequence[bool]) -> Decision | None:
    """Say who stays: the safe entries and the best of the rest; None if there is nothing to do."""
    cache, precision = seen.cache, policy.precision
    safe_entries = once(lambda: policy.protect.safe(seen))
    leaving, room = plan(policy, seen, due, safe_entries)
    if not any(leaving) and not precision.quantises:
        return None
    safe = safe_entries()
    scores = None
    if any(leaving):
        candidates = None if safe is None else ~safe
        scores = policy.score.score(cache.state, seen, candidates, room)
    in_place = not precision.quantises and not policy.specification.evict_before_attend
    if in_place and scores is not None and not cache.ragged and set(leaving) == {1}:
        slot, lowest = first_to_go(scores, safe, seen.positions)
        _note_lowest(cache, lowest)
        return Decision(scores, safe, evicted_slot=slot.expand(*seen.positions.shape[:2], 1))
    worth = seen.positions.to(seen.queries.dtype) if scores is None else scores
    lowest = worth.expand_as(seen.positions).masked_fill(~seen.present, torch.inf)
    _note_lowest(cache, lowest.amin(-1, keepdim=True))
    kept = [count - gone for count, gone in zip(cache.counts, leaving, strict=True)]
    slots = keep_slots(worth, safe, seen.positions, kept, cache.ordered)
    return Decision(scores, safe, KeepSet(slots, kept))


def plan(
    policy: Policy,
    seen: Observation,
    due: Sequence[bool],
    safe_entries: Callable[[], Marks | None],
) -> tuple[list[int], list[int]]:
    """Return for every sequence how many entries leave, and how many candidates stay.

    All layers share the answer if it follows from the clock and the counts alone.
    """
    cache, clock = seen.cache, seen.clock
    key = ("plan", cache.counts, cache.demoted)
    if key in clock.memo:
        return clock.memo[key]
    leaving, room, by_data = [], [], False
    for number, row in enumerate(clock.rows):
        entries = cache.counts[number] - cache.demoted[number]
        safe = policy.protect.count(row, entries)
        if safe is None and due[number]:
            marked = safe_entries()
            assert marked is not None
            safe, by_data = int((marked & seen.present)[number].sum(dim=-1).max()), True
        stay = entries - (safe or 0)
        if due[number]:
            places = policy.budget.room(row, entries, safe or 0)
            if places is None:
                places, by_data = policy.budget.room_in(seen, number, safe_entries()), True
            stay = min(stay, places)
        room.append(stay)
        leaving.append(entries - (safe or 0) - stay)
    if not by_data:
        clock.memo[key] = leaving, room
    return leaving, room


def _note_lowest(cache: LayerCache, lowest: Float[Tensor, "N _ 1"]) -> None:
    """Remember whether a score was NaN, which a maximum keeps, without waiting for the device."""
    if cache.lowest_scores is None:
        cache.lowest_scores = lowest
    else:
        cache.lowest_scores = torch.maximum(cache.lowest_scores, lowest)


def apply(policy: Policy, seen: Observation, decision: Decision | None) -> Queries | None:
    """Encode new entries, store what a decision keeps, and evict the rest.

    Returns:
        The attention output over the kept entries, if the policy evicts before it attends.
    """
    cache, keep, output = seen.cache, None, None
    if decision is not None and decision.evicted_slot is not None:
        cache.evict_one(decision.evicted_slot)
    elif decision is not None and decision.keep is not None:
        keep = policy.precision.store(cache, seen, decision.keep)
        if policy.specification.evict_before_attend:
            output = attend_survivors(seen, keep)
    policy.precision.encode(cache, seen.clock)
    if keep is not None:
        cache.compact(keep)
    return output


def attend_survivors(seen: Observation, keep: KeepSet) -> Queries:
    """Attention output over the kept entries, renormalised; a query always keeps its own key."""
    stays, outputs = keep.among(len(seen.cache)), []
    for part in parts(seen.queries, len(seen.cache)):
        queries, places = seen.queries[:, :, :, part], seen.query_positions[:, part]
        attention = softmax(seen.logits(queries), visible(places, seen.positions))
        own = seen.positions[:, :, None, None, :] == places[:, None, None, :, None]
        survivors = attention * (stays[:, :, None, None, :] | own)
        total = survivors.sum(dim=-1, keepdim=True)
        survivors = torch.where(total > 0, survivors / total, 0.0)
        outputs.append(weighted_values(survivors, seen.values))
    return torch.cat(outputs, dim=3)
