"""One step, from top to bottom: append a block, attend, observe, decide, apply the decision.

For each block of tokens, `begin` is called once before all layers of the model, `attend` once for
each of them in order, and `finish` once after all. Who opens the step of a group of layers, and
where the score observes and the policy decides (`_finish`), depends on the group:

| a group is | its step is opened in | and ended in |
|---|---|---|
| one layer that decides alone | `attend` | `attend` |
| one of the layers that decide together (``joins_layers``) | `attend` | `finish` |
| all layers, which share a cache | `begin` | `finish`: one operation for all of them |
| one layer whose token only attends | nowhere: there is no step | |

vLLM's plug-in, which attends by itself, calls `decide` and `apply` alone (`vllm/turns.py`).

Nothing in a step of decoding waits for the device: how many entries a sequence has, and how many it
evicts, follows from the clock alone. Where a method's rule depends on data (DesireKV spares
doubtful tokens), the host waits only at the steps where that method decides. A method that the
reference computes (`engine/host.py`) waits at every step.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from kvlab.fast.engine.cache import BatchClock, KeepSet, LayerCache
from kvlab.fast.engine.layers import Block, Group, Layers, Step, StepResult, Watch
from kvlab.fast.engine.long_blocks import attend_in_parts
from kvlab.fast.engine.number_formats import in_own_formats
from kvlab.fast.engine.observation import (
    Attended,
    LayerView,
    Observation,
    attend_as_needed,
    joined,
    parts,
    reposition,
)
from kvlab.fast.engine.policy import Policy, divided
from kvlab.fast.kernels.attention import softmax, visible, weighted_values
from kvlab.fast.kernels.keep import BEYOND, keep_slots
from kvlab.fast.kernels.notation import Float, Int, Marks, Positions, Queries, Scores, Slots, Tensor
from kvlab.reference.slots import MOST_WAITING

OfLayers = Sequence[Observation | None]
"""What layers that decide together saw; None for those whose step has no event."""


def begin(layers: Layers, clock: BatchClock) -> None:
    """Take in that all layers are about to be given a block."""
    with in_own_formats():
        assert not layers.aging, "the last step was not finished"
        layers.share_or_separate(clock)
        if layers.shared:
            (group,) = layers.groups
            _open_step(group, clock.to(group.cache.positions.device))


def _open_step(group: Group, clock: BatchClock) -> Step:
    """Begin the step of a group; where layers share a cache, open slots for their token.

    The score observes a token later if no decision is due: not with Triton, whose kernels return
    probabilities at no cost, and not the first token, whose keys say whether Triton computes
    (`LayerCache.append`). Tokens that wait are observed before anything else is: here, if a longer
    block comes, or in `_observe`.
    """
    policy, cache = group.policy, group.cache
    single, due = clock.positions.shape[1] == 1, policy.due(clock)
    if not single:
        group.catch_up()
    reads = policy.reads(clock) != "none"
    begun = cache.counts != ()  # before a first block, `cache.triton` is not known
    may_wait = policy.may_wait and begun and not cache.triton
    # A token that a CUDA graph captures has a vacant slot (`TokenGraph` in huggingface/graphs.py).
    # It must observe itself: a replay runs no code of the host, which would let it wait.
    may_wait = may_wait and not cache.has_vacant_slot
    waits = single and reads and may_wait and not any(due)
    every = clock.of_layers(cache.layers, group.prompt)
    group.prompt = every.prompt  # repeated for all layers once: the next step is given it again
    group.step = step = Step(every, due * cache.layers, reads and not waits, waits)
    if cache.layers > 1:
        heads = cache.positions.shape[1]
        positions = every.positions[:, None].expand(-1, heads, 1)
        reused = cache.open_slots({"positions": positions}, every.present)
        step.reused = None if reused is None else reused.view(cache.layers, -1)
    return step


def attend(layers: Layers, place: int, block: Block) -> Queries:
    """Append the block of the layer ``place`` among these, and return its attention output.

    A layer of a shared cache takes its part in the step that has begun for all of them. A layer
    with a cache of its own begins its step here, and ends it here unless all layers decide
    together. If its token only attends, the step would do nothing else, and none is begun.

    Raises:
        ValueError: if the block lacks what the policy reads of the model.
    """
    with in_own_formats():
        policy, group = layers.policy, layers.groups[0 if layers.shared else place]
        if policy.reads_model:
            policy.specification.check_block(block)
        if layers.shared:
            assert group.step is not None
            return _append_and_attend(group, group.step, place, block)
        # tokens that wait are observed in a step, and who watches is shown one for every block
        if policy.only_attends(block.clock) and not (group.waiting or layers.watch):
            return _only_attend(layers, group.cache, block)
        step = _open_step(group, block.clock)
        _append_and_attend(group, step, place, block)
        if not policy.joins_layers:
            _finish(layers, [group])
        # With evict_before_attend `_finish` replaces the output. Outputs that are returned before
        # it, here and above, are final: `reference.policy.Policy` refuses this option with
        # joins_layers, and layers whose policy has it never share a cache (`Policy.is_plain`).
        return step.outputs[-1]


def _only_attend(layers: Layers, cache: LayerCache, block: Block) -> Queries:
    """Append a token and attend without a step: no score observes it, and nothing is evicted.

    `finish` stores what has come of age in all layers at once.
    """
    if layers.policy.stores_by_age:
        layers.aging.append(cache)
    cache.release_state()
    view, needs = _append(cache, block), layers.policy.needs
    # Triton's launch converts queries itself (`arguments_of` in kernels/attend_rows.py)
    queries = block.queries if cache.triton else block.queries.to(cache.dtype)
    return attend_as_needed(needs, False, queries, None, view)[0].to(block.keys.dtype)


def _append_and_attend(group: Group, step: Step, place: int, block: Block) -> Queries:
    """Append a block and attend; keep in its step what the score and the decision read of it.

    The attention itself is `attend_as_needed` of one token, and `attend_in_parts` of several, which
    may let the score observe meanwhile.
    """
    policy, cache = group.policy, group.cache
    single, shared = block.queries.shape[3] == 1, cache.layers > 1
    view = _write(step, cache, place, block) if shared else _append(cache, block)
    # as in `_only_attend`: Triton's launch for one token converts its queries itself
    queries = block.queries if single and cache.triton else block.queries.to(cache.dtype)
    if policy.specification.reposition:
        assert block.rotate is not None
        queries = queries.to(cache.dtype)
        queries, view = reposition(queries, view, block.clock.seen, block.rotate)
    if not shared:  # else what is observed is of all layers
        step.view = view
    step.blocks.append(block)
    step.queries.append(queries)
    if single:
        output, attended = attend_as_needed(policy.needs, step.reads, queries, None, view)
    else:
        output, attended, step.observed = attend_in_parts(policy, _observation(group, step))
    step.attended.append(attended)
    step.outputs.append(output.to(block.keys.dtype))
    return step.outputs[-1]


def _write(step: Step, cache: LayerCache, place: int, block: Block) -> LayerView:
    """Write a layer's keys and values into its rows of a shared cache; return these rows."""
    sequences, reused = len(block.clock.rows), step.reused
    first = place * sequences
    new = {"keys": block.keys, "values": block.values}
    cache.columns.write(new, first, None if reused is None else reused[place])
    return LayerView(cache, block.softcap, (first, sequences))


def _append(cache: LayerCache, block: Block) -> LayerView:
    """Add a block to the cache of one layer; return its entries."""
    cache.append(block.keys, block.values, block.clock)
    only_block = len(cache) == block.keys.shape[2]
    view = LayerView(cache, block.softcap, only_block=only_block)
    if only_block and cache.quantises:  # they are coded later: nothing has to be decoded
        view.read = {"keys": block.keys, "values": block.values}
    return view


def _observation(group: Group, step: Step) -> Observation:
    """Return what the block's tokens see, in all layers of the group that were given it."""
    block, queries = step.blocks[-1], joined(step.queries)
    of_model: dict[str, Any] = {}
    if group.policy.reads_model:
        given = [each.hidden_states for each in step.blocks if each.hidden_states is not None]
        of_model = {
            "hidden_states": joined(given).to(queries.dtype) if given else None,
            "rotations": [each.rotate for each in step.blocks if each.rotate is not None],
            "projections": [x.projection for x in step.blocks if x.projection is not None],
            "model": block.model,
        }
    return Observation(
        clock=step.clock,
        numbers=[each.layer for each in step.blocks],
        layers=block.layers,
        given_queries=queries,
        query_positions=step.clock.positions,
        view=step.view or LayerView(group.cache, block.softcap),
        confidence=block.confidence,
        **of_model,
    )


def finish(layers: Layers) -> None:
    """End all steps that have begun: none if every layer has ended its own."""
    with in_own_formats():
        if layers.aging:
            layers.policy.precision.store_by_age(layers.aging)
            layers.aging = []
        _finish(layers, [group for group in layers.groups if group.step is not None])


def _finish(layers: Layers, groups: Sequence[Group]) -> None:
    """End steps: the score observes, the policy decides, and the decision is applied.

    ``groups`` are all that have a step if layers decide together: all observe before one decides.
    """
    policy = layers.policy
    every = [_observe(group) for group in groups]
    for group, seen in zip(groups, every, strict=True):
        step, decision = group.step, None
        assert step is not None
        if seen is not None and any(step.due):
            decision = decide(policy, seen, step.due, every)
        with _shown(layers.watch, group.cache, step, decision):
            if seen is None:
                # nothing was decided: of what `apply` does, only the new entries are to be encoded
                policy.precision.encode(group.cache, step.clock)
            elif (survivors := apply(policy, seen, decision)) is not None:
                step.outputs = [survivors.to(step.outputs[0].dtype)]
            if policy.ended(step.blocks[-1].clock):
                group.cache.release_state()
        group.step = None


def _observe(group: Group) -> Observation | None:
    """Let the score observe a block, unless it did so part by part; return what it saw.

    None if the score observes the block later, or if nothing is decided after it or a later one.
    """
    step, policy = group.step, group.policy
    assert step is not None
    if not policy.observes(step.blocks[-1].clock):  # all layers' rows are alike
        group.catch_up()
        return None
    seen = _observation(group, step)
    if step.waits:
        # a fresh view, so that the waiting observation does not keep float32 copies alive
        seen.view = LayerView(group.cache, seen.view.softcap)
        group.waiting.append(seen)
        if len(group.waiting) == MOST_WAITING:
            group.catch_up()
        return None
    group.catch_up()
    seen.attended = Attended.of_all(step.attended)
    if not step.observed:
        policy.score.observe(group.cache.state, seen)
    return seen


@dataclass(frozen=True)
class Decision:
    """What is evicted, and why. `decide` returns one of four things, and `apply` acts on it:

    | what is decided | ``scores`` | ``keep`` | ``evicted_slot`` |
    |---|---|---|---|
    | one entry of each head leaves, in place | given | None | its slot |
    | several leave, and the cache is compacted | given | the others | None |
    | none leaves, but some may be quantised | None | every slot | None |
    | nothing: None in place of a decision | | | |
    """

    scores: Scores | None
    protected: Marks | None
    """Entries that could not leave; None if all could."""
    keep: KeepSet | None = None
    evicted_slot: Int[Tensor, "N G 1"] | None = None


def decide(
    policy: Policy, seen: Observation, due: Sequence[bool], of_layers: OfLayers = ()
) -> Decision | None:
    """Return what is kept: protected entries and the best of the rest; None if nothing is to do.

    ``due`` says of every sequence whether to decide now, as `Policy.due` does. ``of_layers``: what
    every layer saw, where layers decide together and have a cache each.
    """
    cache, quantises = seen.cache, policy.precision.quantises
    protected = policy.protect.protected(seen)
    evicting, kept = counts_to_evict(policy, seen, due, protected)
    if not any(evicting):
        every = KeepSet(_every_slot(seen), cache.counts)
        return Decision(None, protected, every) if quantises else None
    candidates = None if protected is None else ~protected
    if policy.joins_layers:
        scores = _mean_over_layers(policy, of_layers or [seen], candidates, kept)
    else:
        scores = policy.score.score(cache.state, seen, candidates, kept)
    # One entry leaves its slot to the next token, and nothing else moves. Not so with codes, which
    # lie in tables without vacant slots; where some slots are empty, which `first_to_go` does not
    # know; and where `attend_survivors` needs the keep set.
    one_leaves_in_place = set(evicting) == {1} and not (
        quantises or cache.ragged or policy.specification.evict_before_attend
    )
    if one_leaves_in_place:
        slot, lowest = first_to_go(scores, protected, seen.positions)
        _note_nan(cache, lowest)
        return Decision(scores, protected, evicted_slot=slot.expand(*seen.positions.shape[:2], 1))
    # For the check for NaN alone: `keep_slots` chooses.
    closed = ~seen.present if protected is None else ~seen.present | protected
    lowest = scores.expand_as(seen.positions).masked_fill(closed, torch.inf)
    _note_nan(cache, lowest.amin(-1, keepdim=True))
    counts = [count - gone for count, gone in zip(cache.counts, evicting, strict=True)]
    slots = keep_slots(scores, protected, seen.positions, counts, cache.ordered)
    return Decision(scores, protected, KeepSet(slots, counts))


def first_to_go(
    scores: Scores, protected: Marks | None, positions: Positions
) -> tuple[Int[Tensor, "N _ 1"], Float[Tensor, "N _ 1"]]:
    """Return the slot of each head's lowest score, of equal ones the earliest, and that score.

    That score must be below infinity. ``protected`` None: every entry may be evicted.
    """
    open_scores = scores if protected is None else scores.masked_fill(protected, torch.inf)
    lowest = open_scores.amin(dim=-1, keepdim=True)
    earliest = positions.masked_fill(open_scores != lowest, BEYOND)
    return earliest.argmin(dim=-1, keepdim=True), lowest


def _every_slot(seen: Observation) -> Slots:
    """Return the slots of all entries in ascending position."""
    cache, positions = seen.cache, seen.positions
    if cache.ordered and not cache.ragged:
        width, device = len(cache), positions.device
        places = seen.clock.once(("slots", width), lambda: torch.arange(width, device=device))
        return places.expand_as(positions)
    return positions.argsort(dim=-1)[:, :, len(cache) - max(cache.counts) :]


def _mean_over_layers(
    policy: Policy, of_layers: OfLayers, candidates: Marks | None, kept: Sequence[int]
) -> Scores:
    """Rate the entries of layers that decide together, whose slots are alike, by their mean.

    Where layers have a cache each, `_finish` decides about one after the other, and this is called
    for each of them. The mean is made once: whichever layer asks, it is in the memo of the first
    layer's clock.
    """
    every = [seen for seen in of_layers if seen is not None]

    def rated(seen: Observation) -> Scores:
        return policy.score.score(seen.cache.state, seen, candidates, kept)

    (first, *_), layers_in_cache = every, every[0].cache.layers
    if layers_in_cache == 1:
        return first.clock.once("mean", lambda: torch.stack([rated(x) for x in every]).mean(0))
    scores = rated(first).unflatten(0, (layers_in_cache, -1))
    return scores.mean(dim=0, keepdim=True).expand_as(scores).flatten(0, 1)


def counts_to_evict(
    policy: Policy, seen: Observation, due: Sequence[bool], protected: Marks | None
) -> tuple[list[int], list[int]]:
    """Return two counts for every row of the cache: entries to evict, and candidates to keep.

    `Policy.plan` says both where they follow from the clock. Candidates are what is not protected.
    What is kept of them is never negative, unlike the `Budget.room` from which `divided` makes it.
    All layers share the answer if it follows from the clock and the counts alone: the memo is of
    all layers.
    """
    cache, clock = seen.cache, seen.clock
    key = ("counts to evict", cache.counts, cache.demoted, tuple(due))
    if key in clock.memo:
        return clock.memo[key]
    entries = [count - gone for count, gone in zip(cache.counts, cache.demoted, strict=True)]
    rows = list(zip(clock.rows, entries, due, strict=True))
    # The first layer's rows stand for all: layers hold unequally many entries only if the budget
    # depends on the layer, and then the answer is None where a decision is due.
    known = [policy.plan(*row) for row in rows[: cache.sequences]] * cache.layers
    alike = None not in known
    if not alike:
        known = [policy.plan(*row) for row in rows]
    counts = [
        _counts_by_data(policy, seen, number, entries[number], protected) if each is None else each
        for number, each in enumerate(known)
    ]
    evicting, kept = map(list, zip(*counts, strict=True))
    if alike:
        clock.memo[key] = evicting, kept
    return evicting, kept


def _counts_by_data(
    policy: Policy, seen: Observation, number: int, entries: int, protected: Marks | None
) -> tuple[int, int]:
    """Return how many entries of one row are evicted and kept, by its data or its layer."""
    count = policy.protect.count(seen.clock.rows[number], entries)
    if count is None:
        assert protected is not None
        count = int((protected & seen.present)[number].sum(dim=-1).max())
    return divided(entries, count, policy.budget.room_in(seen, number, entries, count, protected))


def _note_nan(cache: LayerCache, lowest: Float[Tensor, "N _ 1"]) -> None:
    """Remember whether a score was NaN: then so are the lowest one, and every maximum from then on.

    Nothing waits for the device; `LayerCache.check_scores` does, when it is asked.
    """
    if cache.nan_if_any is None:
        cache.nan_if_any = lowest
    else:
        cache.nan_if_any = torch.maximum(cache.nan_if_any, lowest)


def apply(policy: Policy, seen: Observation, decision: Decision | None) -> Queries | None:
    """Encode new entries, store what a decision keeps, and evict the rest.

    The order matters: storing may add entries to the keep set, whose slots are counted before the
    cache is compacted. Return the output over the kept entries, if the policy evicts before it
    attends.
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


# --- who watches ----------------------------------------------------------------------------------


@contextmanager
def _shown(
    watch: Watch | None, cache: LayerCache, step: Step, decision: Decision | None
) -> Iterator[None]:
    """Let a step be applied, then show it to who watches, layer by layer.

    What the step may overwrite is copied before: scores, too, may be a column of the cache.
    """
    if watch is None:
        yield
        return
    positions = cache.positions.clone()
    made = (None, None) if decision is None else (decision.scores, decision.protected)
    copies = [None if each is None else each.clone() for each in made]
    yield
    for place, (block, output) in enumerate(zip(step.blocks, step.outputs, strict=True)):
        first = place * cache.sequences
        rows = slice(first, first + cache.sequences)
        scores, protected = (None if each is None else each[rows] for each in copies)
        copied = partial(cache.copied, place)
        watch(block, StepResult(output, positions[rows], scores, protected, copied))
