"""Makes the test vectors of the methods: records a stream and takes cases from its steps."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kvlab.reference import methods
from kvlab.reference.cache import LayerCache, State
from kvlab.reference.conformance import stages, whole_cache
from kvlab.reference.conformance.blocks import logit_size
from kvlab.reference.conformance.case import Case
from kvlab.reference.conformance.groups import (
    OPTION,
    OPTIONS,
    TIED,
    groups_of,
    is_option,
    stream_of,
)
from kvlab.reference.conformance.storing import UncertainError, finished
from kvlab.reference.method import Example
from kvlab.reference.notation import Array
from kvlab.reference.observation import Observation
from kvlab.reference.policy import Full, Policy, Unlimited
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.selection import keep_set
from kvlab.reference.step import Block, empty_cache, select
from kvlab.reference.streams import Source, Stream, run_stream

ATTEMPTS = 2000
"""Most streams that are drawn until one has clear decisions only."""

QUICK_ATTEMPTS = 20
"""The same for a method without published vectors, whose cases are made during the check."""

CLEAR = 1e-4
"""Least relative distance between the lowest score that stays and the highest that goes."""

CLEAR_PER_LOGIT = 4e-6
"""The same, for every unit of the largest logit, whose error is relative to it."""

READY_TO_RUN = 200
"""Streams of a group about equal scores that are tried for a case of the whole stream."""

NUDGE = 1e-5
"""Relative noise on the inputs that must not change the result of a stream."""

NUDGES = 4


def method_cases(names: Iterable[str]) -> Iterator[Case]:
    """Build all cases of all examples of these methods.

    Raises:
        RuntimeError: if no stream of a group leads to clear decisions.
    """
    for name in names:
        for example in methods.examples_of(name):
            for group in groups_of(example):
                yield from example_cases(example, group, ATTEMPTS)


def cases_on_the_spot(name: str) -> Iterator[Case]:
    """Build the cases of a method without published ones, but for groups that are never clear."""
    for example in methods.examples_of(name):
        for group in groups_of(example):
            for ties in (example.ties, True):
                try:
                    yield from example_cases(replace(example, ties=ties), group, QUICK_ATTEMPTS)
                    break
                except RuntimeError:
                    continue


def example_cases(
    example: Example, group: str, attempts: int, steps: Iterable[str] = tuple(stages.STEPS)
) -> tuple[Case, ...]:
    """Return the cases of an example in one group, from the first stream that is clear.

    Args:
        example: method and budget.
        group: whose stream is drawn.
        attempts: streams that are drawn at most.
        steps: steps to make cases of.

    Raises:
        RuntimeError: if no stream is clear.
    """
    for attempt in range(attempts):
        stream = stream_of(group, attempt)
        budget = stream.tokens if group == "budget_ge_length" else example.budget
        policy = methods.get(example.spec, budget)
        tied = example.ties or group in TIED
        whole = not tied or attempt < READY_TO_RUN
        events = clear_events(policy, stream, tied) if whole else [*recording(policy, stream)]
        if events is None:
            continue
        try:
            cases = tuple(from_events(example, budget, policy, stream, events, group, steps))
        except UncertainError:
            continue
        runs = [case for case in cases if case.operation == "run"]
        if not whole:
            return tuple(case for case in cases if case not in runs)
        if all(is_steady(case, policy) for case in runs):
            return cases
    raise RuntimeError(f"no stream of {group} gives {example.spec} clear decisions")


# --- recording -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """The effect of one block on one layer."""

    policy: Policy
    block: Block
    cache: LayerCache
    """Cache before the block."""
    seen: Observation
    keep: Array | None
    """None where the step was not due."""
    codes: bool
    """Whether some entries are not at full precision any more."""

    @cached_property
    def before(self) -> State:
        """State before the block was observed; its own entries are there."""
        block, columns = self.block, self.policy.score.columns
        grown = self.cache.append(block.keys, block.values, block.clock.positions, columns)
        return grown.state

    @cached_property
    def after(self) -> State:
        """State after the block was observed."""
        return self.policy.score.observe(self.before, self.seen)

    @property
    def fresh(self) -> bool:
        """Whether all entries were at full precision."""
        return bool((self.cache.keys.bits == FULL_BITS).all())

    @property
    def evicts(self) -> bool:
        """Whether an entry left."""
        return self.keep is not None and self.keep.shape[1] < self.seen.positions.shape[1]


def clear_events(policy: Policy, stream: Stream, tied: bool) -> list[Event] | None:
    """Return every step of a stream, or None if the scores of a step do not decide clearly."""
    events = []
    for event in recording(policy, stream):
        if not is_clear(policy, event, tied):
            return None
        events.append(event)
    return events


def recording(policy: Policy, stream: Stream) -> Iterator[Event]:
    """Feed a stream to a policy and note every step."""
    cache = empty_cache(policy, len(stream.keys), stream.keys.shape[2])
    for block, result in zip(stream.pieces(), run_stream(policy, stream), strict=True):
        codes = bool((result.cache.keys.bits < FULL_BITS).any())
        yield Event(policy, block, cache, result.seen, result.keep, codes)
        cache = result.cache


def is_clear(policy: Policy, event: Event, tied: bool) -> bool:
    """Whether the scores decide clearly; equal scores count as clear if ``tied``."""
    if not event.evicts or policy.score.ordinal:
        return True
    safe = policy.protect.safe(event.seen)
    candidates, room = ~safe, max(0, policy.budget.room(event.seen, safe))
    scores = policy.score.score(event.after, event.seen, candidates, room)
    keep = keep_set(scores, safe, room)
    stays = np.zeros_like(candidates)
    np.put_along_axis(stays, keep, True, axis=-1)
    clear = CLEAR + CLEAR_PER_LOGIT * logit_size(event.seen.queries, event.seen.keys)
    for g in range(len(scores)):
        kept, gone = scores[g, candidates[g] & stays[g]], scores[g, candidates[g] & ~stays[g]]
        if not len(kept) or not len(gone):
            continue
        low, high = kept.min(), gone.max()
        if low == high and tied:
            continue
        if not low - high > clear * max(abs(low), abs(high)):
            return False
    return True


def is_steady(case: Case, policy: Policy) -> bool:
    """Whether a stream ends the same if its inputs are a little off.

    Keys and values that are quantised are left alone: their codes are exact.
    """
    names = ("queries", "keys", "values") if isinstance(policy.precision, Full) else ("queries",)
    expected = stages.replay(case.inputs, case.parameters, case.method)
    source = Source(case.name)
    allowed = 1e-3 + 10 * NUDGE * logit_size(case.inputs["queries"], case.inputs["keys"])
    for _ in range(NUDGES):
        nudged = {
            name: x * (1 + NUDGE * source.normal(*x.shape)) if name in names else x
            for name, x in case.inputs.items()
        }
        found = stages.replay(nudged, case.parameters, case.method)
        off = np.abs(found.output - expected.output).max()
        if not np.array_equal(found.present, expected.present) or off > allowed * 4:
            return False
    return True


def is_decisive(case: Case) -> bool:
    """Whether the scores of a case decide clearly; only whole streams can leave doubt."""
    if case.operation == "whole_cache":
        return whole_cache.is_steady(case.inputs, case.parameters, case.method)
    if case.operation != "run" or case.method is None:
        return True
    stream = stages.stream_from(case.inputs, case.parameters)
    policy = stages.policy_of(case.method, case.parameters)
    return clear_events(policy, stream, case.group in TIED) is not None


# --- cases ---------------------------------------------------------------------------------------


def from_events(
    example: Example,
    budget: int | None,
    policy: Policy,
    stream: Stream,
    events: list[Event],
    group: str,
    steps: Iterable[str],
) -> Iterator[Case]:
    """Take the whole stream as a case, and the steps of the blocks that decide."""
    spec, prefix = example.spec, ""
    if is_option(example) and group in OPTION:
        group, prefix = OPTIONS, f"{group}-"
    parameters = parameters_of(spec, budget, stream)
    for number, event in enumerate(chosen(events, group)):
        here = parameters | stages.clock_parameters(event.seen.clock)
        for operation, inputs, more in event_inputs(policy, event, group):
            if operation not in steps:
                continue
            name = f"{prefix}{number}"
            yield finished(operation, spec, group, name, {**here, **more}, inputs)
    if stream.first == 0:
        yield finished(
            "run", spec, group, f"{prefix}0", parameters, run_inputs(policy, stream, events)
        )


def parameters_of(spec: str, budget: int | None, stream: Stream) -> dict[str, Any]:
    """Return the parameters that all cases of one stream share."""
    given = {"budget": budget, "softcap": stream.softcap, "prompt": stream.prompt}
    return {**stages.options_of(spec), **given}


def chosen(events: list[Event], group: str) -> list[Event]:
    """Return the first block of several tokens that decides, and the last block that decides."""
    due = [event for event in events if event.keep is not None]
    deciding = [event for event in due if event.evicts or (event.fresh and event.codes)]
    if not deciding:
        return due[-1:] if group == "budget_ge_length" else []
    wide = [event for event in deciding if event.seen.clock.block > 1]
    picked = [*wide[:1], *[event for event in deciding[-1:] if event not in wide[:1]]]
    storing = [event for event in deciding if event.fresh and event.codes][:1]
    return [*picked, *[event for event in storing if not any(event is p for p in picked)]]


def event_inputs(
    policy: Policy, event: Event, group: str
) -> Iterator[tuple[str, dict[str, Array], dict[str, int]]]:
    """Return name, inputs and further parameters of the operations that a block shows."""
    seen, score = event.seen, policy.score
    common = stages.inputs_of(seen)
    stored = {"stored_bits": seen.bits, "confidence": seen.confidence}
    more = {} if isinstance(policy.precision, Full) else stored
    if score.columns:
        yield "observe", {**common, **stages.state_inputs(policy, event.before)}, {}
    if not isinstance(policy.budget, Unlimited):
        state = stages.state_inputs(policy, event.after)
        decision = select(policy, event.after, seen)
        if not score.ordinal and decision.candidates.any():
            given = {**common, **state, "candidates": decision.candidates}
            yield "score", given, {"room": decision.room}
        yield "select", {**common, **state, **more, **score.drawn(seen)}, {}
        yield "keep", {"scores": given_scores(seen, group), "positions": seen.positions, **more}, {}
    if event.fresh and event.codes:
        keep = select(policy, event.after, seen).keep
        yield "store", {**common, "confidence": seen.confidence, "keep": keep}, {}


def given_scores(seen: Observation, group: str) -> Array:
    """Draw scores that do not follow from attention; groups about equal scores get many."""
    G, n = seen.positions.shape
    source = Source(f"scores {group} {G} {n}")
    if group in TIED:
        return source.integers(0, 3, G, n) / 2.0
    return np.stack([source.permutation(n) for _ in range(G)]) / 32.0 - 0.25


def run_inputs(policy: Policy, stream: Stream, events: list[Event]) -> dict[str, Array]:
    """Return a stream and the numbers drawn on its way, as inputs."""
    drawn: dict[str, Array] = {}
    for event in events:
        if event.keep is not None:
            drawn |= policy.score.drawn(event.seen)
    return {
        "queries": stream.queries,
        "keys": stream.keys,
        "values": stream.values,
        "blocks": np.array(stream.blocks),
        "confidence": stream.confidence,
        **drawn,
    }
