"""The compressed layers of a model: each in a cache of its own, or all in one.

Every layer attends to its entries; then the policy observes, decides, and the decision is applied.
While single tokens are generated, most of a step's time goes into starting small operations. So the
layers then share a cache whose batch axis has a row for every layer and sequence (layer l's
sequence r is row l·N + r): they attend one after the other, and observe, decide and apply together
at the end of the step.

Between two decisions nothing leaves. Where a score allows it, tokens in between attend by PyTorch's
fused kernels, which do not return the probabilities. The score observes these tokens together
afterwards: one product of their queries with the keys in place of one per token.
"""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.engine.attention import compute_dtype, logits, softmax, softmax_in_place, visible
from kvlab.fast.engine.batch import BatchClock
from kvlab.fast.engine.cache import LayerCache, LayerMemory
from kvlab.fast.engine.columns import MOST_SLACK
from kvlab.fast.engine.notation import Queries
from kvlab.fast.engine.observation import Attended, LayerView, Observation, attend_as_needed, parts
from kvlab.fast.engine.policy import Policy
from kvlab.fast.engine.step import Block, Decision, StepResult, apply, attend, decide
from kvlab.fast.kernels.choice import uses_triton

Watch = Callable[[Block, StepResult], None]
"""Called after every step of every layer that is compressed."""

SOON = 2 * MOST_SLACK
"""Layers share a cache only if a decision is due within this many tokens."""

MOST_WAITING = 32
"""Tokens whose queries wait for the score to observe them."""


@dataclass(eq=False)
class SharedStep:
    """A token that all layers of a shared cache are given one after the other."""

    clock: BatchClock
    """Of all rows of the cache."""
    due: list[bool]
    rows: str
    """Which rows of attention the score reads."""
    waits: bool
    """Whether the score observes the token later."""
    ragged: bool
    reused: Int[Tensor, "L NG"] | None
    """Slots of the vacant entries that the token overwrites; None if it has slots at the end."""
    blocks: list[Block] = field(default_factory=list)
    queries: list[Float[Tensor, "N G rho 1 d"]] = field(default_factory=list)
    outputs: list[Float[Tensor, "N G rho 1 d"]] = field(default_factory=list)
    attended: list[Attended] = field(default_factory=list)


class Layers:
    """The layers of a model that a policy compresses."""

    def __init__(self, policy: Policy, count: int, watch: Watch | None = None) -> None:
        self.policy, self.count, self.watch = policy, count, watch
        self.caches = [policy.empty_cache() for _ in range(count)]
        """One for every layer, or one that all layers share."""
        self.shared = False
        self._prompt: Tensor | None = None
        self.step: SharedStep | None = None
        self.waiting: list[SharedStep] = []
        """Tokens that the score has not observed yet."""

    # --- a step ---

    def begin(self, clock: BatchClock) -> None:
        """Take in that all layers are about to be given a block."""
        single = clock.positions.shape[1] == 1
        if self.shared and not single:
            self._catch_up()
            self.caches, self.shared = self.copies(), False
        elif single and not self.shared and self._can_share(clock):
            self.caches, self.shared = [LayerCache.joined(self.caches)], True
            keys = self.caches[0].columns["keys"]
            self._dtype, self._heads = compute_dtype(keys.dtype), keys.shape[1]
            self._converts, self._triton = keys.dtype != self._dtype, uses_triton(keys)
        self.step = self._open_slots(clock) if self.shared else None

    def attend(self, place: int, block: Block) -> Queries:
        """Append the block of one layer, and attend to the layer's entries.

        Args:
            place: number of the layer among these.
            block: what the model hands over.
        """
        if self.step is not None:
            return self._attend_shared(self.step, place, block)
        cache, clock = self.caches[place], block.clock
        cache.append(block.keys, block.values, clock.positions, clock.present)
        output, seen = attend(self.policy, cache, block)
        due = clock.once("due", lambda: [self.policy.schedule.due(row) for row in clock.rows])
        positions = seen.positions if self.watch is None else seen.positions.clone()
        decision = self._decide(seen, due)
        survivors = apply(self.policy, seen, decision)
        if survivors is not None:
            output = survivors.to(output.dtype)
        self._show(place, [block], [output], positions, decision)
        return output

    def finish(self) -> None:
        """End the block: layers that share a cache observe, decide and apply the decision."""
        step, self.step = self.step, None
        if step is None:
            return
        cache, decision = self.caches[0], None
        positions = cache.positions if self.watch is None else cache.positions.clone()
        if step.waits:
            self.waiting.append(step)
        if not step.waits or len(self.waiting) == MOST_WAITING:
            self._catch_up()
        if not step.waits:
            seen = self._observation(step, step.clock, torch.cat(step.queries))
            seen.attended = Attended.of_all(step.attended)
            if step.rows == "last":
                seen.newest_output = torch.cat(step.outputs)[:, :, :, 0]
            self.policy.score.observe(cache.state, seen)
            decision = self._decide(seen, step.due)
            apply(self.policy, seen, decision)
        self._show(0, step.blocks, step.outputs, positions, decision)
        step.blocks, step.outputs, step.attended = step.blocks[-1:], [], []

    def _can_share(self, clock: BatchClock) -> bool:
        """Say whether these layers can share a cache from now on.

        They can if the policy does not quantise, decides within `SOON` tokens, evicts after
        attention, moves no positions and has a twin for each of its parts, and if all layers have
        equally many entries.
        """
        policy, first, now = self.policy, self.caches[0], clock.rows[0]
        apart = policy.specification.evict_before_attend or policy.specification.reposition
        if apart or policy.precision.quantises or policy.on_host or not first.counts:
            return False
        alike = all(
            cache.counts == first.counts and cache.columns.layout == first.columns.layout
            for cache in self.caches
        )
        later = (replace(now, seen=now.seen + ahead) for ahead in range(SOON))
        return alike and any(policy.schedule.due(token) for token in later)

    def _open_slots(self, clock: BatchClock) -> SharedStep:
        """Open a slot for the next token in every row of the shared cache."""
        cache, policy, L = self.caches[0], self.policy, self.count
        clock = clock.to(cache.positions.device)
        if self._prompt is None:
            self._prompt = clock.prompt.repeat(L, 1, 1)
        positions = clock.positions.expand(L, *clock.positions.shape).flatten(0, 1)
        due = [policy.schedule.due(row) for row in clock.rows]
        rows = policy.needs.reads(clock)
        waits = policy.needs.may_wait and not self._triton and rows != "none" and not any(due)
        every = BatchClock(clock.rows * L, positions, self._prompt)
        columns = {"positions": positions[:, None].expand(-1, self._heads, 1)}
        reused = cache.open_slots(columns, every.present, self._dtype)
        reused = None if reused is None else reused.view(L, -1)
        return SharedStep(every, due * L, rows, waits, cache.ragged, reused)

    def _attend_shared(
        self, step: SharedStep, place: int, block: Block
    ) -> Float[Tensor, "N G rho 1 d"]:
        cache, sequences = self.caches[0], len(block.clock.rows)
        first = place * sequences
        for name, new in (("keys", block.keys), ("values", block.values)):
            if step.reused is None:
                cache.columns.newest_of(name, first, sequences).copy_(new)
            else:
                cache.columns.flat(name).index_copy_(0, step.reused[place], new.flatten(0, 2))
        queries = block.queries.to(self._dtype) if self._converts else block.queries
        column = partial(cache.columns.of_sequences, first=first, sequences=sequences)
        view = LayerView(column, self._dtype, step.ragged, self._triton, block.softcap)
        reads = step.rows != "none" and not step.waits
        output, attended = attend_as_needed(self.policy.needs, reads, queries, None, view)
        step.blocks.append(block)
        step.queries.append(queries)
        step.outputs.append(output)
        step.attended.append(attended)
        return output.to(block.keys.dtype) if self._converts else output

    def _catch_up(self) -> None:
        """Let the score observe the tokens that wait, as one block."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        tokens, last, cache = len(waiting), waiting[-1], self.caches[0]
        layers = zip(*(step.queries for step in waiting), strict=True)
        queries = torch.cat([torch.cat(layer, dim=3) for layer in layers])
        positions = torch.cat([step.clock.positions for step in waiting], dim=1)
        rows = tuple(replace(row, block=tokens) for row in last.clock.rows)
        clock = BatchClock(rows, positions, last.clock.prompt)
        seen = self._observation(last, clock, queries)
        for part in parts(queries, len(cache)):
            weights = logits(queries[:, :, :, part], seen.keys, seen.view.softcap)
            if cache.ordered and not cache.ragged:
                # the slot of the token that decides may be open already
                newest = cache.positions[:, :, None, None, -tokens - 1 :]
                softmax_in_place(weights, newest > positions[:, None, None, part, None])
            else:
                weights = softmax(weights, visible(positions[:, part], cache.positions))
            self.policy.score.observe(cache.state, seen.part(part, Attended(weights)))

    def _observation(self, step: SharedStep, clock: BatchClock, queries: Tensor) -> Observation:
        """Return what tokens of all layers see; ``step`` is the last of them."""
        cache, block = self.caches[0], step.blocks[-1]
        column, ragged = cache.columns.__getitem__, cache.ragged
        return Observation(
            clock=clock,
            layer=-1,
            queries=queries,
            query_positions=clock.positions,
            cache=cache,
            view=LayerView(column, self._dtype, ragged, self._triton, block.softcap),
            confidence=block.confidence,
        )

    def _decide(self, seen: Observation, due: list[bool]) -> Decision | None:
        decision = decide(self.policy, seen, due) if any(due) else None
        if decision is None or decision.scores is None or self.watch is None:
            return decision
        return replace(decision, scores=decision.scores.clone())  # they may be a column

    def _show(
        self,
        first: int,
        blocks: list[Block],
        outputs: list[Queries],
        positions: Int[Tensor, "LN G n"],
        decision: Decision | None,
    ) -> None:
        """Show copies of the steps of some layers, from the ``first`` on, to who watches."""
        if self.watch is None:
            return
        for number, (block, output) in enumerate(zip(blocks, outputs, strict=True)):
            sequences = len(block.clock.rows)
            rows = slice(number * sequences, (number + 1) * sequences)
            scores = None if decision is None else decision.scores
            safe = None if decision is None else decision.safe
            result = StepResult(
                output.to(block.keys.dtype),
                positions[rows],
                None if scores is None else scores[rows],
                None if safe is None else safe[rows],
                partial(self._copy, first + number),
            )
            self.watch(block, result)

    # --- what users ask ---

    @property
    def kept(self) -> list[tuple[int, ...]]:
        """Entries per head of each sequence, for every layer."""
        share = self.count // len(self.caches)
        return [cache.counts[: len(cache.counts) // share] for cache in self.caches] * share

    def copies(self) -> list[LayerCache]:
        """Return a copy of every layer's cache."""
        return [self._copy(place) for place in range(self.count)]

    def memory(self) -> list[LayerMemory]:
        """Bytes that each layer has allocated; waiting queries are state."""
        share = self.count // len(self.caches)
        queries = sum(layer.nbytes for step in self.waiting for layer in step.queries)
        found = []
        for cache in self.caches:
            whole = cache.memory()
            whole = replace(whole, state=whole.state + queries)
            found += [LayerMemory(*(size // share for size in astuple(whole)))] * share
        return found

    def check(self) -> None:
        """Raise ValueError if a score was NaN so far. Waits for the device."""
        for cache in self.caches:
            if cache.lowest_scores is not None and cache.lowest_scores.isnan().any():
                raise ValueError(
                    "scores must not be NaN: the model's keys or values are no numbers"
                )

    def map_rows(self, change: Callable[[Tensor], Tensor], order: Sequence[int]) -> None:
        """Apply one change of the batch axis; ``order`` is the same change as indices."""
        self._catch_up()
        for cache in self.caches:
            if cache.counts:
                cache.map_rows(change, order, self.count // len(self.caches))
        self._prompt = None

    def _copy(self, place: int) -> LayerCache:
        cache = self.caches[0 if self.shared else place]
        sequences = len(cache.counts) // (self.count if self.shared else 1)
        return cache.part(place * sequences if self.shared else 0, sequences)
