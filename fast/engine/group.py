"""What the layers that share a cache do with a block: attend, observe, decide, apply.

A group is one layer, or all layers of a model while single tokens are generated. Then most of a
step's time goes into starting small operations: the layers attend one after the other, and observe,
decide and apply together at the end of the step. The batch axis of their cache has a row for every
layer and sequence; layer l's sequence r is row l·N + r.

Between two decisions nothing is evicted. Where a score allows it, tokens in between attend by
PyTorch's fused kernels, which do not return the probabilities. The score observes these tokens
together afterwards: one product of their queries with the keys in place of one per token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from kvlab.fast.engine.batch import BatchClock
from kvlab.fast.engine.cache import LayerCache
from kvlab.fast.engine.observation import (
    Attended,
    LayerView,
    Observation,
    attend_as_needed,
    parts,
)
from kvlab.fast.engine.policy import Policy
from kvlab.fast.engine.step import (
    Block,
    Decision,
    StepResult,
    Watch,
    apply,
    attend_in_parts,
    decide,
    reposition,
)
from kvlab.fast.kernels.attention import logits, softmax, visible
from kvlab.fast.kernels.notation import Positions, Queries

MOST_WAITING = 32
"""Tokens whose queries wait for the score to observe them."""


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
    numbers: list[int] = field(default_factory=list)
    """Numbers of the layers in the model."""
    blocks: list[Block] = field(default_factory=list)
    queries: list[Queries] = field(default_factory=list)
    outputs: list[Queries] = field(default_factory=list)
    attended: list[Attended] = field(default_factory=list)


class Group:
    """One layer, or several that share a cache."""

    def __init__(self, policy: Policy, cache: LayerCache, watch: Watch | None = None) -> None:
        self.policy, self.cache, self.watch = policy, cache, watch
        self.count = cache.layers
        self.waiting: list[Step] = []
        """Tokens that the score has not observed yet."""
        self.step: Step | None = None
        self.prompt: Tensor | None = None

    # --- a step ---

    def begin(self, clock: BatchClock) -> None:
        """Begin the step of a block; where layers share the cache, open slots for its token."""
        policy, cache = self.policy, self.cache
        single = clock.positions.shape[1] == 1
        due = policy.due(clock)
        reads = policy.reads(clock) != "none"
        needs = policy.needs
        may_wait = single and needs.may_wait and not needs.hidden_states
        may_wait = may_wait and policy.is_plain and not cache.triton
        waits = reads and may_wait and cache.counts != () and not any(due)
        if not single:
            self.catch_up()
        every = clock if self.count == 1 else self._of_all_rows(clock)
        self.step = step = Step(every, due * self.count, reads and not waits, waits)
        if self.count > 1:
            heads = cache.positions.shape[1]
            positions = every.positions[:, None].expand(-1, heads, 1)
            reused = cache.open_slots({"positions": positions}, every.present)
            step.reused = None if reused is None else reused.view(self.count, -1)

    def attend(self, place: int, block: Block) -> Queries:
        """Append the block of the group's layer ``place``, and attend to the layer's entries."""
        step, policy, cache = self.step, self.policy, self.cache
        assert step is not None
        if self.count == 1:
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
            seen = self._observation(step, step.clock, queries)
            output, attended, step.observed = attend_in_parts(policy, seen)
        step.attended.append(attended)
        if output.dtype != block.keys.dtype:
            output = output.to(block.keys.dtype)
        step.outputs.append(output)
        return output

    def finish(self) -> Queries:
        """End the step: the score observes, the policy decides, and the decision is applied.

        Return the last layer's output, over the kept entries if the policy evicts before attending.
        """
        (step, self.step), decision, positions = (self.step, None), None, None
        assert step is not None
        if self.watch is not None:
            positions = self.cache.positions.clone()
        if step.waits:
            self.waiting.append(step)
        if not step.waits or len(self.waiting) == MOST_WAITING:
            self.catch_up()
        if not step.waits:
            seen = self._observe(step)
            decision = decide(self.policy, seen, step.due) if any(step.due) else None
            if self.watch is not None and decision is not None:
                decision = decision.copied()
            survivors = apply(self.policy, seen, decision)
            if survivors is not None:
                step.outputs = [survivors.to(step.outputs[0].dtype)]
            if self.policy.ended(step.clock):
                self.cache.release_state()
        if positions is not None:
            self._show(step, positions, decision)
        output = step.outputs[-1]
        step.blocks, step.view, step.outputs, step.attended = step.blocks[-1:], None, [], []
        return output

    def _of_all_rows(self, clock: BatchClock) -> BatchClock:
        if self.prompt is None:
            self.prompt = clock.prompt.repeat(self.count, 1, 1)
        positions = clock.positions.expand(self.count, *clock.positions.shape).flatten(0, 1)
        return BatchClock(clock.rows * self.count, positions, self.prompt)

    def _observe(self, step: Step) -> Observation:
        seen = self._observation(step, step.clock, joined(step.queries))
        seen.attended = Attended.of_all(step.attended)
        if not step.observed and self.policy.observes(step.clock):
            self.policy.score.observe(self.cache.state, seen)
        return seen

    def catch_up(self) -> None:
        """Let the score observe the tokens that wait, as one block."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        tokens, last, cache = len(waiting), waiting[-1], self.cache
        layers = zip(*(step.queries for step in waiting), strict=True)
        queries = joined([torch.cat(layer, dim=3) for layer in layers])
        positions = torch.cat([step.clock.positions for step in waiting], dim=1)
        rows = tuple(replace(row, block=tokens) for row in last.clock.rows)
        clock = BatchClock(rows, positions, last.clock.prompt)
        seen = self._observation(last, clock, queries)
        for part in parts(queries, len(cache)):
            weights = logits(queries[:, :, :, part], seen.keys, seen.view.softcap)
            weights = softmax(weights, visible(positions[:, part], cache.positions))
            self.policy.score.observe(cache.state, seen.part(part, Attended(weights)))

    def _observation(self, step: Step, clock: BatchClock, queries: Queries) -> Observation:
        """Return what tokens of all layers see; ``step`` is the last of them."""
        block = step.blocks[-1]
        given = [each.hidden_states for each in step.blocks if each.hidden_states is not None]
        return Observation(
            clock=clock,
            numbers=step.numbers,
            layers=block.layers,
            queries=queries,
            query_positions=clock.positions,
            view=step.view or LayerView(self.cache, block.softcap),
            confidence=block.confidence,
            hidden_states=joined(given).to(queries.dtype) if given else None,
        )

    def _show(self, step: Step, positions: Positions, decision: Decision | None) -> None:
        """Show copies of a step to who watches, layer by layer."""
        assert self.watch is not None
        decided = (None, None) if decision is None else (decision.scores, decision.protected)
        for place, (block, output) in enumerate(zip(step.blocks, step.outputs, strict=True)):
            first = place * self.cache.sequences
            rows = slice(first, first + self.cache.sequences)
            scores, protected = (None if each is None else each[rows] for each in decided)
            copied = partial(self.cache.copied, place)
            self.watch(block, StepResult(output, positions[rows], scores, protected, copied))


def joined(layers: Sequence[Tensor]) -> Tensor:
    """Join tensors along the batch axis; one alone is not copied."""
    return layers[0] if len(layers) == 1 else torch.cat(list(layers))
