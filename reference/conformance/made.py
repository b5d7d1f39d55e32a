"""Makes cases with the reference's answers: of drawn inputs, and of what a stream shows."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from kvlab.reference import methods
from kvlab.reference.cache import LayerCache, State
from kvlab.reference.conformance import blocks, draws
from kvlab.reference.conformance.expecting import logit_size, threshold
from kvlab.reference.conformance.stages import REMEMBERED
from kvlab.reference.conformance.targets import answer, composition
from kvlab.reference.conformance.vectors import Case
from kvlab.reference.conformance.whole_cache import head_dim
from kvlab.reference.granularity import WholePages
from kvlab.reference.method import CommonOptions, Example
from kvlab.reference.notation import Array, Scores
from kvlab.reference.observation import Clock
from kvlab.reference.policy import Full, Policy
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.step import Block, StepResult, apply, empty_cache, look
from kvlab.reference.streams import Source, Stream

CLEAR = 1e-4
"""Least relative distance between the lowest score that is kept and the highest evicted."""

CLEAR_PER_LOGIT = 4e-6
"""The same, for every unit of the largest logit, whose error is relative to it."""

TIED = ("ties", "repeated_entries", "equal_scores", "at_threshold", "mri_zero")
"""Streams of equal scores."""


def made_case(name: str, group: str, method: str | None, drawn: draws.Drawn) -> Case:
    """Return a case of inputs, rounded as they are stored, and parameters, with its answer.

    The name is unique and begins with the target.
    """
    inputs, parameters = drawn
    stored = {key: x.astype(np.float32) if x.dtype.kind == "f" else x for key, x in inputs.items()}
    case = Case(name, name.partition("/")[0], group, method, parameters, stored, {})
    expected = answer(case)
    if case.operation in ("run", "whole_cache") and "precision" in parameters:
        d = inputs["keys"].shape[-1] if "keys" in inputs else head_dim(parameters["model"])
        stored |= blocks.matrices(parameters["precision"], d)
    return replace(case, inputs=stored, expected=expected)


@dataclass(frozen=True)
class Event:
    """The effect of one block on one layer."""

    policy: Policy
    before: LayerCache
    """The cache with the block's entries, before the block was observed."""
    looked: StepResult
    """Result before any entry is evicted."""
    result: StepResult

    @property
    def block(self) -> int:
        """Tokens of the block."""
        return self.looked.seen.clock.block

    @property
    def stores(self) -> bool:
        """Whether all entries were at full precision before, and some are not any more."""
        was_full = (self.before.keys.bits == FULL_BITS).all()
        return bool(was_full and (self.result.cache.keys.bits < FULL_BITS).any())

    @property
    def evicts(self) -> bool:
        """Whether an entry was evicted."""
        keep = self.result.keep
        return keep is not None and keep.shape[1] < self.looked.seen.positions.shape[1]

    @property
    def is_clear(self) -> bool:
        """Whether the scores decide clearly, or are equal: then the later entry is kept.

        Scores below what float32 holds are one score there.
        """
        decision, seen = self.looked.decision, self.looked.seen
        if not self.evicts or self.policy.score.ordinal:
            return True
        assert decision is not None and decision.scores is not None
        kept = np.zeros_like(decision.candidates)
        np.put_along_axis(kept, decision.keep, True, axis=-1)
        low, high = threshold(decision.scores, decision.candidates, kept)
        clear = CLEAR + CLEAR_PER_LOGIT * logit_size(seen.queries, seen.keys)
        size = np.maximum(abs(low), abs(high))
        apart = (low - high > clear * size) & (size >= np.finfo(np.float32).tiny)
        return bool((np.isinf(low) | np.isinf(high) | (low == high) | apart).all())


def recording(policy: Policy, blocks: Iterable[Block], cache: LayerCache) -> Iterator[Event]:
    """Feed blocks to a policy and note every step."""
    for block in blocks:
        result = looked = look(policy, cache, block)
        if looked.decision is not None:
            result = apply(policy, looked, looked.decision.keep)
        clock, columns = block.clock, policy.score.columns
        before = cache.append(block.keys, block.values, clock.positions, columns)
        yield Event(policy, before, looked, result)
        cache = result.cache


def grown(event: Event, spec: str, budget: int | None, entries: int) -> Event:
    """Return the event in a cache of more entries, whose states are those of others in it."""
    seen, before, stream = event.looked.seen, event.before, event.before.state.stream
    (G, n), block, source = seen.positions.shape, seen.clock.block, Source(f"grown {entries}")
    old, further = n - block, entries - seen.clock.seen
    like = np.arange(G)[:, None], source.integers(0, old, G, entries - block)
    policy = methods.get(spec, budget)
    clock = Clock(entries, block, seen.clock.prompt + further)
    cache = empty_cache(policy, G, seen.keys.shape[-1])
    keys, values = (source.normal(G, entries - block, seen.keys.shape[-1]) for _ in range(2))
    cache = cache.append(keys, values, np.arange(entries - block), policy.score.columns)
    columns = {name: x[like] for name, x in before.state.entries.items()}
    if "query_positions" in stream:
        stream = {**stream, "query_positions": stream["query_positions"] + further}
    cache = replace(cache, state=State(columns, stream))
    confidence = np.concatenate([np.full(further, np.nan), seen.confidence])
    newest = seen.keys[:, -block:], seen.values[:, -block:]
    block = Block(clock, 0, seen.queries, *newest, confidence, softcap=seen.softcap)
    return next(recording(policy, [block], cache))


def cases_of_stream(
    example: Example,
    stream: Stream,
    group: str,
    steps: Collection[str],
    first: int = 0,
    most: int | None = None,
    entries: int | None = None,
    apart: bool = False,
    label: str = "",
) -> list[Case]:
    """Make cases of the last block of each kind that decides, or of the ``most`` last ones.

    ``apart``, every block is a kind of its own; ``label`` stands before a case's number.
    ``run``, the whole stream, is a case only if all decisions are clear. Where a number of
    ``entries`` is given, the blocks meet a cache of so many instead of their own.
    """
    spec = example.spec
    policy = methods.get(spec, example.budget)
    policy.check(stream.prompt)
    cache = empty_cache(policy, len(stream.keys), stream.keys.shape[2])
    events = recording(policy, stream.pieces(), cache)
    due = [event for event in events if event.looked.decision is not None]
    deciding = [event for event in due if event.evicts or event.stores] or due[-1:]
    if entries is not None:
        deciding = [event for event in deciding if len(event.before) > event.block]
    kinds = {}
    for event in deciding:
        clock = event.looked.seen.clock
        kinds[clock.prefilling, clock.block > 1, event.stores, apart and clock.seen] = event
    parameters = {**options_of(spec), "budget": example.budget, "softcap": stream.softcap}
    parameters["prompt"] = stream.prompt
    found = []

    def add(step: str, number: int, inputs: dict[str, Array], more: dict[str, Any]) -> None:
        if step in steps:
            name = f"{composition(spec)}.{step}/{group}/{spec}/{label}{number}"
            found.append(made_case(name, group, spec, (inputs, {**parameters, **more})))

    for number, event in enumerate([*kinds.values()][-(most or len(kinds)) :], first):
        budget = example.budget if entries is None else example.budget and entries // 2
        shown = event if entries is None else grown(event, spec, budget, entries)
        if shown.looked.decision is None:
            continue
        clock = shown.looked.seen.clock
        here = {key: getattr(clock, key) for key in ("seen", "block", "prompt", "generated")}
        here["budget"] = budget
        for step, inputs, more in _event_inputs(shown, group):
            add(step, number, inputs, {**here, **more})
    if entries is None and stream.first == 0 and all(event.is_clear for event in due):
        names = ("queries", "keys", "values", "confidence")
        inputs = {name: getattr(stream, name) for name in names}
        inputs["blocks"] = np.array(stream.blocks)
        for event in due:
            inputs |= event.policy.score.drawn(event.looked.seen)
        add("run", first, inputs, {})
    return found


def options_of(spec: str) -> dict[str, Any]:
    """Return all hyper-parameters of a method in registry syntax, those of every method first.

    An option of a wrapper hides the wrapped method's, and both hide the one of every method.
    """
    part: Any = methods.parse(spec)
    common, own = dict[str, Any](), dict[str, Any]()
    while part is not None:
        found = {f.name: getattr(part, f.name) for f in fields(part) if f.name != "base"}
        common, own = (found, own) if isinstance(part, CommonOptions) else (common, found | own)
        part = getattr(part, "base", None)
    return common | own


def _event_inputs(
    event: Event, group: str
) -> Iterator[tuple[str, dict[str, Array], dict[str, int]]]:
    """Yield name, inputs and further parameters of the steps that a block shows."""
    policy, seen, decision = event.policy, event.looked.seen, event.looked.decision
    names = ("queries", "keys", "values", "attention", "positions", "query_positions")
    common = {name: getattr(seen, name) for name in names}
    stored = {"stored_bits": seen.bits, "confidence": seen.confidence}
    more = {} if isinstance(policy.precision, Full) else stored
    assert decision is not None
    if policy.score.columns:
        yield "observe", {**common, **_state_inputs(policy, event.before.state)}, {}
    if policy.evicts:
        state = _state_inputs(policy, event.looked.cache.state)
        candidates, keep = decision.candidates, decision.keep
        room = keep.shape[1] - int((~candidates).sum(axis=-1).max())
        if not policy.score.ordinal and candidates.any():
            yield "score", {**common, **state, "candidates": candidates}, {"room": room}
        yield "select", {**common, **state, **more, **policy.score.drawn(seen)}, {}
        (G, n), source = seen.positions.shape, Source(f"scores {group} {seen.positions.shape}")
        scores = draws.SCORES["ties" if group in TIED else "plain"](source, G, n)
        scores = _as_rated(policy, scores, seen.positions)
        yield "keep", {"scores": scores, "positions": seen.positions, **more}, {}
    if event.stores:
        yield "store", {**common, "confidence": seen.confidence, "keep": decision.keep}, {}


def _as_rated(policy: Policy, scores: Scores, positions: Int[Array, "G n"]) -> Scores:
    """Return scores as a policy's are: the same in a page, or in all heads, that decides as one."""
    if policy.score.joins_kv_heads:
        scores = np.tile(scores[:1], (len(scores), 1))
    if isinstance(policy.protect, WholePages):
        pages = positions // policy.protect.page
        first = np.stack([np.searchsorted(head, head) for head in pages])
        scores = np.take_along_axis(scores, first, axis=1)
    return scores


def _state_inputs(policy: Policy, state: State) -> dict[str, Array]:
    remembered = {REMEMBERED + name: np.asarray(x) for name, x in state.stream.items()}
    return {**{name: state.entries[name] for name in policy.score.columns}, **remembered}
