"""What a step consists of: attend to a long block, decide what to evict, and apply the decision.

`kvlab.fast.engine.group` calls these functions for one layer, or for several that share a cache.
Nothing in a step of decoding waits for the device: how many entries a sequence has, and how many
it evicts, follows from the clock alone. Where a method's rule depends on data (DesireKV spares
doubtful tokens), the host waits only at the steps where that method decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache as once
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.engine.batch import BatchClock, KeepSet
from kvlab.fast.engine.cache import LayerCache
from kvlab.fast.engine.observation import (
    Attended,
    LayerView,
    Observation,
    attend_as_needed,
    attend_unread,
    attend_with_sums,
    parts,
)
from kvlab.fast.engine.policy import Policy
from kvlab.fast.kernels.attention import softmax, visible, weighted_values
from kvlab.fast.kernels.keep import first_to_go, keep_slots
from kvlab.fast.kernels.notation import Marks, Positions, Queries, Scores


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


@dataclass(frozen=True)
class Decision:
    """What is evicted, and why."""

    scores: Scores | None
    """None if nothing has to be evicted."""
    protected: Marks | None
    keep: KeepSet | None = None
    evicted_slot: Int[Tensor, "N G 1"] | None = None
    """Slot of the one entry that each head evicts; None if it evicts more, and has to compact."""

    def copied(self) -> "Decision":
        """Return the decision with a copy of its scores, which may be a column of the cache."""
        return self if self.scores is None else replace(self, scores=self.scores.clone())


def attend_in_parts(policy: Policy, seen: Observation) -> tuple[Queries, Attended, bool]:
    """Let a long block attend, part by part: its attention is never in memory as a whole.

    Return the output, what the score has still to be given, and whether it has observed the block.
    """
    needs, view, m = policy.needs, seen.view, seen.queries.shape[3]
    outputs, on_host, rows = [], [], policy.reads(seen.clock)
    if rows == "all" and needs.sums is not None:
        output, attended = attend_with_sums(needs.sums, seen.clock, seen.queries, view)
        policy.score.observe(seen.cache.state, seen.part(slice(0, m), attended))
        return output, Attended(), True
    unread = rows != "all" and view.softcap is None
    if unread:
        outputs.append(attend_unread(seen.clock, seen.queries, view))
    for part in [] if unread else parts(seen.queries, len(seen.cache)):
        queries, positions = seen.queries[:, :, :, part], seen.query_positions[:, part]
        output, attended = attend_as_needed(needs, rows == "all", queries, positions, view)
        outputs.append(output)
        if attended.weights is not None and policy.score.on_host:
            on_host.append(attended.weights.cpu())
        elif rows == "all":
            policy.score.observe(seen.cache.state, seen.part(part, attended))
    attended = Attended(torch.cat(on_host, dim=3) if on_host else None)
    if rows == "last":
        newest = seen.queries[:, :, :, -1:]
        output, attended = attend_as_needed(needs, True, newest, None, view)
        attended.output = output
    return torch.cat(outputs, dim=3), attended, rows == "all" and not policy.score.on_host


def reposition(queries: Queries, view: LayerView, block: Block) -> tuple[Queries, LayerView]:
    """Rotate queries and keys to the index of their entry among the present ones."""
    if block.rotate is None:
        raise ValueError("reposition = True needs a model whose rotary embedding is known")
    positions = view.positions
    places = torch.arange(positions.shape[-1], dtype=torch.int32, device=positions.device)
    index = torch.empty_like(positions).scatter_(
        -1, positions.argsort(dim=-1), places.expand_as(positions)
    )
    index = index - (positions < 0).sum(dim=-1, keepdim=True, dtype=torch.int32)
    entries = (positions[:, :1] >= 0).sum(dim=-1, keepdim=True, dtype=torch.int32)
    shift = (entries - block.clock.seen)[..., None].expand(-1, 1, 1, queries.shape[3])
    keys = block.rotate(view.keys, index - positions)
    view = LayerView(view.cache, view.softcap, repositioned=True, read={"keys": keys})
    return block.rotate(queries, shift), view


def decide(policy: Policy, seen: Observation, due: Sequence[bool]) -> Decision | None:
    """Return what is kept: protected entries and the best of the rest; None if nothing is to do."""
    cache, precision = seen.cache, policy.precision
    protected_entries = once(lambda: policy.protect.safe(seen))
    leaving, room = plan(policy, seen, due, protected_entries)
    if not any(leaving) and not precision.quantises:
        return None
    protected = protected_entries()
    scores = None
    if any(leaving):
        candidates = None if protected is None else ~protected
        scores = policy.score.score(cache.state, seen, candidates, room)
    elif cache.ordered and not cache.ragged:
        every = torch.arange(len(cache), device=seen.positions.device)
        return Decision(None, protected, KeepSet(every.expand_as(seen.positions), cache.counts))
    in_place = not precision.quantises and not policy.specification.evict_before_attend
    if in_place and scores is not None and not cache.ragged and set(leaving) == {1}:
        slot, lowest = first_to_go(scores, protected, seen.positions)
        _note_lowest(cache, lowest)
        return Decision(scores, protected, evicted_slot=slot.expand(*seen.positions.shape[:2], 1))
    worth = seen.positions.to(seen.queries.dtype) if scores is None else scores
    lowest = worth.expand_as(seen.positions).masked_fill(~seen.present, torch.inf)
    _note_lowest(cache, lowest.amin(-1, keepdim=True))
    kept = [count - gone for count, gone in zip(cache.counts, leaving, strict=True)]
    slots = keep_slots(worth, protected, seen.positions, kept, cache.ordered)
    return Decision(scores, protected, KeepSet(slots, kept))


def plan(
    policy: Policy,
    seen: Observation,
    due: Sequence[bool],
    protected_entries: Callable[[], Marks | None],
) -> tuple[list[int], list[int]]:
    """Return for every sequence how many entries are evicted, and how many candidates are kept.

    All layers share the answer if it follows from the clock and the counts alone: the memo is of
    all layers.
    """
    cache, clock = seen.cache, seen.clock
    key = ("plan", cache.counts, cache.demoted)
    if key in clock.memo:
        return clock.memo[key]
    leaving, room, shared = [], [], True
    for number, row in enumerate(clock.rows):
        entries = cache.counts[number] - cache.demoted[number]
        protected = policy.protect.count(row, entries)
        if protected is None and due[number]:
            marked = protected_entries()
            assert marked is not None
            protected, shared = int((marked & seen.present)[number].sum(dim=-1).max()), False
        stay = entries - (protected or 0)
        if due[number]:
            places = policy.budget.room(row, entries, protected or 0)
            if places is None:
                layer, shared = seen.numbers[number // cache.sequences], False
                given = entries, protected or 0, layer, seen.layers
                places = policy.budget.room_of_layer(row, *given)
            if places is None:
                places = policy.budget.room_in(seen, number, protected_entries())
            stay = min(stay, places)
        room.append(stay)
        leaving.append(entries - (protected or 0) - stay)
    if shared:
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

    Return the output over the kept entries, if the policy evicts before it attends.
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
