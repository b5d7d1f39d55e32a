"""One step, from top to bottom: append a block, attend, observe, decide, apply the decision.

For one layer, or for all layers that share a cache: these attend one after the other, and observe,
decide and apply together at the end of the step. Nothing in a step of decoding waits for the
device: how many entries a sequence has, and how many it evicts, follows from the clock alone. Where
a method's rule depends on data (DesireKV spares doubtful tokens), the host waits only at the steps
where that method decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache as once
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.engine.ambient import without_autocast
from kvlab.fast.engine.batch import BatchClock, KeepSet
from kvlab.fast.engine.cache import LayerCache
from kvlab.fast.engine.layers import (
    MOST_WAITING,
    Block,
    Group,
    Layers,
    Step,
    StepResult,
    Watch,
    joined,
)
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


@without_autocast()
def begin(layers: Layers, clock: BatchClock) -> None:
    """Take in that all layers are about to be given a block."""
    layers.arrange(clock)
    if layers.shared:
        (group,) = layers.groups
        _open(group, clock.to(group.cache.positions.device))


def _open(group: Group, clock: BatchClock) -> None:
    """Begin the step of a group; where layers share a cache, open slots for their token."""
    policy, cache = group.policy, group.cache
    single, due, needs = clock.positions.shape[1] == 1, policy.due(clock), policy.needs
    reads = policy.reads(clock) != "none"
    may_wait = single and needs.may_wait and not needs.hidden_states
    may_wait = may_wait and policy.is_plain and not cache.triton
    waits = reads and may_wait and cache.counts != () and not any(due)
    if not single:
        group.catch_up()
    every = group.clock_of_all_rows(clock)
    group.step = step = Step(every, due * group.count, reads and not waits, waits)
    if group.count > 1:
        heads = cache.positions.shape[1]
        positions = every.positions[:, None].expand(-1, heads, 1)
        reused = cache.open_slots({"positions": positions}, every.present)
        step.reused = None if reused is None else reused.view(group.count, -1)


@without_autocast()
def attend(layers: Layers, place: int, block: Block) -> Queries:
    """Append the block of the layer ``place`` among these, and return its attention output.

    A layer that has a cache to itself ends its step here.
    """
    group = layers.groups[0 if layers.shared else place]
    if not layers.shared:
        _open(group, block.clock)
    step, policy, cache = group.step, layers.policy, group.cache
    assert step is not None
    if not layers.shared:
        clock = step.clock
        cache.append(block.keys, block.values, clock)
        only_block = len(cache) == block.keys.shape[2]
        step.view = view = LayerView(cache, block.softcap, only_block=only_block)
    else:
        sequences, reused = len(block.clock.rows), step.reused
        first = place * sequences
        new = {"keys": block.keys, "values": block.values}
        cache.columns.write(new, first, None if reused is None else reused[place])
        view = LayerView(cache, block.softcap, (first, sequences))
    queries = block.queries
    if queries.dtype != cache.dtype:
        queries = queries.to(cache.dtype)
    if policy.specification.reposition:
        queries, view = reposition(queries, view, block)
        step.view = view
    step.blocks.append(block)
    step.numbers.append(block.layer)
    step.queries.append(queries)
    if queries.shape[3] == 1:
        output, attended = attend_as_needed(policy.needs, step.reads, queries, None, view)
        attended.output = output if policy.needs.rows == "last" else None
    else:
        seen = group.observation(step, step.clock, queries)
        output, attended, step.observed = attend_in_parts(policy, seen)
    step.attended.append(attended)
    if output.dtype != block.keys.dtype:
        output = output.to(block.keys.dtype)
    step.outputs.append(output)
    if not layers.end_together:
        return finish(layers, place)
    if not layers.shared and place == layers.count - 1:
        finish(layers)
    return output


@without_autocast()
def finish(layers: Layers, place: int = 0) -> Queries:
    """End a step: the score observes, the policy decides, and the decision is applied.

    ``place`` is the layer's where it has a cache to itself; layers that share one, or decide
    together, end together. Return the last layer's output, over the kept entries if the policy
    evicts before attending.
    """
    groups = layers.groups if layers.end_together else [layers.groups[place]]
    seen = [_observe(group) for group in groups]
    outputs = [_end(layers, *each, seen) for each in zip(groups, seen, strict=True)]
    return outputs[-1]


def _observe(group: Group) -> Observation | None:
    """Let the score observe a block, unless it did so part by part; return what it saw.

    None if the score observes the block later.
    """
    step, cache = group.step, group.cache
    assert step is not None
    if step.waits:
        group.waiting.append(step)
    if not step.waits or len(group.waiting) == MOST_WAITING:
        group.catch_up()
    if step.waits:
        return None
    seen = group.observation(step, step.clock, joined(step.queries))
    seen.attended = Attended.of_all(step.attended)
    if not step.observed and group.policy.observes(step.clock):
        group.policy.score.observe(cache.state, seen)
    return seen


def _end(
    layers: Layers,
    group: Group,
    seen: Observation | None,
    of_layers: Sequence[Observation | None],
) -> Queries:
    """End the step of a group, of which ``seen`` is what the policy decides about now."""
    policy, cache, watch = layers.policy, group.cache, layers.watch
    (step, group.step), decision, positions = (group.step, None), None, None
    assert step is not None
    if watch is not None:
        positions = cache.positions.clone()
    if seen is not None:
        every = [each for each in of_layers if each is not None]
        decision = decide(policy, seen, step.due, every) if any(step.due) else None
        if watch is not None and decision is not None:
            decision = decision.copied()
        survivors = apply(policy, seen, decision)
        if survivors is not None:
            step.outputs = [survivors.to(step.outputs[0].dtype)]
        if policy.ended(step.clock):
            cache.release_state()
    if watch is not None and positions is not None:
        _show(group, watch, step, positions, decision)
    output = step.outputs[-1]
    step.blocks, step.view, step.outputs, step.attended = step.blocks[-1:], None, [], []
    return output


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


def decide(
    policy: Policy,
    seen: Observation,
    due: Sequence[bool],
    of_layers: Sequence[Observation] = (),
) -> Decision | None:
    """Return what is kept: protected entries and the best of the rest; None if nothing is to do.

    ``of_layers``: what every layer saw, where layers decide together and have a cache each.
    """
    cache, precision = seen.cache, policy.precision
    protected_entries = once(lambda: policy.protect.protected(seen))
    leaving, room = plan(policy, seen, due, protected_entries)
    if not any(leaving) and not precision.quantises:
        return None
    protected = protected_entries()
    scores = None
    if any(leaving):
        candidates = None if protected is None else ~protected
        scores = _rated(policy, seen, of_layers, candidates, room)
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


def _rated(
    policy: Policy,
    seen: Observation,
    of_layers: Sequence[Observation],
    candidates: Marks | None,
    room: Sequence[int],
) -> Scores:
    """Rate the entries; layers that decide together, whose slots are alike, by their mean."""

    def rated(each: Observation) -> Scores:
        return policy.score.score(each.cache.state, each, candidates, room)

    if not policy.joins_layers:
        return rated(seen)
    if seen.cache.layers == 1:
        every = of_layers or [seen]
        return seen.clock.once("mean", lambda: torch.stack([rated(each) for each in every]).mean(0))
    scores = rated(seen).unflatten(0, (seen.cache.layers, -1))
    return scores.mean(dim=0, keepdim=True).expand_as(scores).flatten(0, 1)


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
        if number == cache.sequences and shared:  # layers that share a cache hold equally many
            leaving, room = leaving * cache.layers, room * cache.layers
            break
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
    kept, outputs = keep.among(len(seen.cache)), []
    for part in parts(seen.queries, len(seen.cache)):
        queries, places = seen.queries[:, :, :, part], seen.query_positions[:, part]
        attention = softmax(seen.logits(queries), visible(places, seen.positions))
        own = seen.positions[:, :, None, None, :] == places[:, None, None, :, None]
        survivors = attention * (kept[:, :, None, None, :] | own)
        total = survivors.sum(dim=-1, keepdim=True)
        survivors = torch.where(total > 0, survivors / total, 0.0)
        outputs.append(weighted_values(survivors, seen.values))
    return torch.cat(outputs, dim=3)


# --- long blocks, other positions, and who watches -----------------------------------------------


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


def _show(
    group: Group, watch: Watch, step: Step, positions: Positions, decision: Decision | None
) -> None:
    """Show copies of a step to who watches, layer by layer."""
    decided = (None, None) if decision is None else (decision.scores, decision.protected)
    for place, (block, output) in enumerate(zip(step.blocks, step.outputs, strict=True)):
        first = place * group.cache.sequences
        rows = slice(first, first + group.cache.sequences)
        scores, protected = (None if each is None else each[rows] for each in decided)
        copied = partial(group.cache.copied, place)
        watch(block, StepResult(output, positions[rows], scores, protected, copied))
