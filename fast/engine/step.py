"""One step, from top to bottom: append a block, attend, observe, decide, apply the decision.

`begin` comes before all layers of the model, `attend` is called once for each of them, and `finish`
ends the step. A layer that has a cache to itself ends its step within `attend`. Layers that share a
cache, and layers that decide together, end it after the last of them: what was one operation per
layer is then one for all.

Nothing in a step of decoding waits for the device: how many entries a sequence has, and how many it
evicts, follows from the clock alone. Where a method's rule depends on data (DesireKV spares
doubtful tokens), the host waits only at the steps where that method decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache as once
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.engine.cache import BatchClock, KeepSet, LayerCache
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
from kvlab.fast.kernels.attention import softmax, visible, weighted_values, without_autocast
from kvlab.fast.kernels.keep import first_to_go, keep_slots
from kvlab.fast.kernels.notation import Marks, Positions, Queries, Scores
from kvlab.reference.checks import check_protected


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
    single, due = clock.positions.shape[1] == 1, policy.due(clock)
    reads = policy.reads(clock) != "none"
    waits = single and reads and policy.may_wait and not cache.triton
    waits = waits and cache.counts != () and not any(due)
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
    """Append the block of the layer ``place`` among these, and return its attention output."""
    policy, shared = layers.policy, layers.shared
    group = layers.groups[0 if shared else place]
    if not shared:
        _open(group, block.clock)
    step, cache = group.step, group.cache
    assert step is not None
    if shared:
        view = _written(step, cache, place, block)
    else:
        cache.append(block.keys, block.values, step.clock)
        only_block = len(cache) == block.keys.shape[2]
        view = step.view = LayerView(cache, block.softcap, only_block=only_block)
        if only_block and cache.quantises:  # they are coded later: nothing has to be decoded
            view.read = {"keys": block.keys, "values": block.values}
    queries = block.queries.to(cache.dtype)
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
    step.outputs.append(output := output.to(block.keys.dtype))
    if not layers.end_together:
        return finish(layers, place)
    if not shared and place == layers.count - 1:
        finish(layers)
    return output


def _written(step: Step, cache: LayerCache, place: int, block: Block) -> LayerView:
    """Write a layer's keys and values into its rows of a shared cache; return these rows."""
    sequences, reused = len(block.clock.rows), step.reused
    first = place * sequences
    new = {"keys": block.keys, "values": block.values}
    cache.columns.write(new, first, None if reused is None else reused[place])
    return LayerView(cache, block.softcap, (first, sequences))


@without_autocast()
def finish(layers: Layers, place: int = 0) -> Queries:
    """End a step: the score observes, the policy decides, and the decision is applied.

    ``place`` is the layer's where it ends its step alone. Return the last layer's output, over the
    kept entries if the policy evicts before attending.
    """
    policy, watch, output = layers.policy, layers.watch, None
    groups = layers.groups if layers.end_together else [layers.groups[place]]
    seen = [_observe(group) for group in groups]
    for group, block_seen in zip(groups, seen, strict=True):
        step, decision, positions = group.step, None, None
        assert step is not None
        if watch is not None:
            positions = group.cache.positions.clone()
        if block_seen is not None and any(step.due):
            decision = decide(policy, block_seen, step.due, seen)
        if watch is not None and decision is not None:
            decision = decision.copied()
        if block_seen is not None:
            survivors = apply(policy, block_seen, decision)
            if survivors is not None:
                step.outputs = [survivors.to(step.outputs[0].dtype)]
            if policy.ended(step.clock):
                group.cache.release_state()
        if watch is not None and positions is not None:
            _show(group, watch, step, positions, decision)
        output = step.outputs[-1]
        group.close_step()
    assert output is not None
    return output


def _observe(group: Group) -> Observation | None:
    """Let the score observe a block, unless it did so part by part; return what it saw.

    None if the score observes the block later.
    """
    step, policy = group.step, group.policy
    assert step is not None
    if step.waits:
        group.waiting.append(step)
    if not step.waits or len(group.waiting) == MOST_WAITING:
        group.catch_up()
    if step.waits:
        return None
    seen = group.observation(step, step.clock, joined(step.queries))
    seen.attended = Attended.of_all(step.attended)
    if not step.observed and policy.observes(step.clock):
        policy.score.observe(group.cache.state, seen)
    return seen


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
    of_layers: Sequence[Observation | None] = (),
) -> Decision | None:
    """Return what is kept: protected entries and the best of the rest; None if nothing is to do.

    ``of_layers``: what every layer saw, where layers decide together and have a cache each.
    """
    cache, quantises = seen.cache, policy.precision.quantises
    protected_entries = once(lambda: policy.protect.protected(seen))
    leaving, room = plan(policy, seen, due, protected_entries)
    if not any(leaving):
        every = KeepSet(_every_slot(seen), cache.counts)
        return Decision(None, protected_entries(), every) if quantises else None
    protected = protected_entries()
    candidates = None if protected is None else ~protected
    if policy.joins_layers:
        scores = _mean_over_layers(policy, of_layers or [seen], candidates, room)
    else:
        scores = policy.score.score(cache.state, seen, candidates, room)
    in_place = not (quantises or cache.ragged or policy.specification.evict_before_attend)
    if in_place and set(leaving) == {1}:
        slot, lowest = first_to_go(scores, protected, seen.positions)
        _note_lowest(cache, lowest)
        return Decision(scores, protected, evicted_slot=slot.expand(*seen.positions.shape[:2], 1))
    lowest = scores.expand_as(seen.positions).masked_fill(~seen.present, torch.inf)
    _note_lowest(cache, lowest.amin(-1, keepdim=True))
    kept = [count - gone for count, gone in zip(cache.counts, leaving, strict=True)]
    slots = keep_slots(scores, protected, seen.positions, kept, cache.ordered)
    return Decision(scores, protected, KeepSet(slots, kept))


def _every_slot(seen: Observation) -> Int[Tensor, "N G kept"]:
    """Return the slots of all entries in ascending position."""
    cache, positions = seen.cache, seen.positions
    if cache.ordered and not cache.ragged:
        return torch.arange(len(cache), device=positions.device).expand_as(positions)
    return positions.argsort(dim=-1)[:, :, len(cache) - max(cache.counts) :]


def _mean_over_layers(
    policy: Policy,
    of_layers: Sequence[Observation | None],
    candidates: Marks | None,
    room: Sequence[int],
) -> Scores:
    """Rate the entries of layers that decide together, whose slots are alike, by their mean."""
    every = [seen for seen in of_layers if seen is not None]

    def rated(seen: Observation) -> Scores:
        return policy.score.score(seen.cache.state, seen, candidates, room)

    (first, *_), layers = every, every[0].cache.layers
    if layers == 1:
        return first.clock.once("mean", lambda: torch.stack([rated(x) for x in every]).mean(0))
    scores = rated(first).unflatten(0, (layers, -1))
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
        protected = protected or 0
        places = candidates = entries - protected
        if due[number]:
            places = policy.budget.room(row, entries, protected)
            if places is None:
                layer, shared = seen.numbers[number // cache.sequences], False
                given = entries, protected, layer, seen.layers
                places = policy.budget.room_of_layer(row, *given)
            if places is None:
                places = policy.budget.room_in(seen, number, protected_entries())
            if places < 0:
                check_protected(places + protected, protected)
        room.append(min(candidates, places))
        leaving.append(candidates - room[-1])
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
