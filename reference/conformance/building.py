"""Makes the test vectors of the methods: records a stream and takes cases from its steps."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kvlab.reference.cache import State
from kvlab.reference.conformance import stages
from kvlab.reference.conformance.case import Case, Expected, Inputs, Parameters
from kvlab.reference.conformance.drawing import Source
from kvlab.reference.conformance.operation import DTYPES
from kvlab.reference.conformance.rounding import is_safe, to_float32
from kvlab.reference.conformance.streams import TIED, Stream, stream_of
from kvlab.reference.conformance.subjects import (
    OPTIONS,
    SUBJECTS,
    VARIANT,
    Subject,
    is_option,
)
from kvlab.reference.conformance.targets import OPERATIONS, target_of
from kvlab.reference.notation import Array
from kvlab.reference.policy import (
    Block,
    Clock,
    Full,
    Observation,
    Policy,
    Unlimited,
    empty_cache,
    select,
    step,
)
from kvlab.reference.quantization import FULL_BITS

ATTEMPTS = 2000
"""Streams that are drawn at most until one has clear decisions only."""

CLEAR = 1e-4
"""Relative distance between the score that just stays and the one that just goes."""

CLEAR_PER_LOGIT = 4e-6
"""The same, for every unit of the largest logit, whose error is relative to it."""

READY_TO_RUN = 200
"""Streams of a group about equal scores after which a case of the whole stream is given up."""

NUDGE = 1e-5
"""Relative noise on the inputs under which a stream has to end the same."""

NUDGES = 4


def method_cases() -> Iterator[Case]:
    """Build all cases of all methods."""
    for subject in SUBJECTS:
        for group in subject.groups:
            yield from subject_cases(subject, group)


def subject_cases(subject: Subject, group: str) -> tuple[Case, ...]:
    """Return the cases of one method in one group, from the first stream that is clear.

    Raises:
        RuntimeError: if no stream is.
    """
    for attempt in range(ATTEMPTS):
        stream = stream_of(group, attempt)
        budget = stream.length if group == "budget_ge_length" else subject.budget
        policy = stages.policy_of(subject.spec, {"budget": budget})
        tied = subject.tied or group in TIED
        whole = not tied or attempt < READY_TO_RUN
        events = clear_events(policy, stream, tied) if whole else recorded(policy, stream)
        if events is None:
            continue
        try:
            cases = tuple(from_events(subject, budget, policy, stream, events, group))
        except UncertainError:
            continue
        runs = [case for case in cases if case.operation == "run"]
        if not whole:
            return tuple(case for case in cases if case not in runs)
        if all(is_steady(case, policy) for case in runs):
            return cases
    raise RuntimeError(f"no stream of {group} gives {subject.spec} clear decisions")


# --- recording -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """What one block did."""

    seen: Observation
    before: State
    """State before the block was observed; its own entries are there."""
    after: State
    keep: Array | None
    """None where the step was not due."""
    fresh: bool
    """Whether all entries were at full precision."""
    codes: bool
    """Whether some are not any more."""

    @property
    def evicts(self) -> bool:
        """Whether an entry left."""
        return self.keep is not None and self.keep.shape[1] < self.seen.positions.shape[1]


def clear_events(policy: Policy, stream: Stream, tied: bool) -> list[Event] | None:
    """Return every step of a stream; None as soon as one leaves doubt about who leaves."""
    events = []
    for event in recording(policy, stream):
        if not is_clear(policy, event, tied):
            return None
        events.append(event)
    return events


def recorded(policy: Policy, stream: Stream) -> list[Event]:
    """Return every step of a stream."""
    return list(recording(policy, stream))


def recording(policy: Policy, stream: Stream) -> Iterator[Event]:
    """Feed a stream to a policy and note every step."""
    G, _, _, d = stream.queries.shape
    cache, done = empty_cache(policy, G, d), 0
    confidence = np.concatenate([np.full(stream.first, np.nan), stream.confidence])
    for m in stream.blocks:
        part = slice(done, done + m)
        done += m
        block = Block(
            Clock(stream.first + done, m, stream.prompt),
            0,
            stream.queries[:, :, part],
            stream.keys[:, part],
            stream.values[:, part],
            confidence[: stream.first + done],
            softcap=stream.softcap,
        )
        grown = cache.append(block.keys, block.values, block.clock.positions, policy.score.columns)
        result = step(policy, cache, block)
        after = policy.score.observe(grown.state, result.seen)
        fresh = bool((grown.keys.bits == FULL_BITS).all())
        cache = result.cache
        codes = bool((cache.keys.bits < FULL_BITS).any())
        yield Event(result.seen, grown.state, after, result.keep, fresh, codes)


def is_clear(policy: Policy, event: Event, tied: bool) -> bool:
    """Whether nobody can doubt who leaves; equal scores are clear where a group is about them."""
    if not event.evicts or policy.score.ordinal:
        return True
    assert event.keep is not None
    candidates, keep = select(policy, event.after, event.seen)
    room = keep.shape[1] - int((~candidates).sum(axis=-1).max())
    scores = policy.score.score(event.after, event.seen, candidates, room)
    stays = np.zeros_like(candidates)
    np.put_along_axis(stays, keep, True, axis=-1)
    clear = CLEAR + CLEAR_PER_LOGIT * stages.logit_size(event.seen.queries, event.seen.keys)
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
    allowed = 1e-3 + 10 * NUDGE * stages.logit_size(case.inputs["queries"], case.inputs["keys"])
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
    """Whether a case leaves no doubt about who stays; only whole streams can."""
    if case.operation != "run" or case.method is None:
        return True
    inputs, parameters = case.inputs, case.parameters
    stream = Stream(
        inputs["queries"],
        inputs["keys"],
        inputs["values"],
        inputs["confidence"],
        parameters["prompt"],
        tuple(int(m) for m in inputs["blocks"]),
        softcap=parameters["softcap"],
    )
    policy = stages.policy_of(case.method, parameters)
    return clear_events(policy, stream, case.group in TIED) is not None


# --- cases ---------------------------------------------------------------------------------------


class UncertainError(Exception):
    """A number could be stored in two ways."""


def from_events(
    subject: Subject,
    budget: int | None,
    policy: Policy,
    stream: Stream,
    events: list[Event],
    group: str,
) -> Iterator[Case]:
    """Take the whole stream as a case, and the steps of the blocks that decide."""
    spec, prefix = subject.spec, ""
    if is_option(subject) and group in VARIANT:
        group, prefix = OPTIONS, f"{group}-"
    parameters = {
        **stages.options_of(spec),
        "budget": budget,
        "softcap": stream.softcap,
        "prompt": stream.prompt,
    }
    for number, event in enumerate(chosen(events, group)):
        here = parameters | stages.clock_parameters(event.seen.clock)
        for operation, inputs, more in event_inputs(policy, event, group):
            name = f"{prefix}{number}"
            yield finished(operation, spec, group, name, {**here, **more}, inputs)
    if stream.first == 0:
        yield finished(
            "run", spec, group, f"{prefix}0", parameters, run_inputs(policy, stream, events)
        )


def chosen(events: list[Event], group: str) -> list[Event]:
    """Return the first block of several tokens that decides, and the last that does."""
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
        candidates, keep = select(policy, event.after, seen)
        room = keep.shape[1] - int((~candidates).sum(axis=-1).max())
        if not score.ordinal and candidates.any():
            yield "score", {**common, **state, "candidates": candidates}, {"room": room}
        yield "select", {**common, **state, **more, **score.drawn(seen)}, {}
        yield "keep", {"scores": given_scores(seen, group), "positions": seen.positions, **more}, {}
    if event.fresh and event.codes:
        _, keep = select(policy, event.after, seen)
        yield "store", {**common, "confidence": seen.confidence, "keep": keep}, {}


def given_scores(seen: Observation, group: str) -> Array:
    """Draw scores that do not follow from attention; groups about equal scores get many."""
    G, n = seen.positions.shape
    source = Source(f"scores {group} {G} {n}")
    if group in TIED:
        return source.integers(0, 3, G, n) / 2.0
    return np.stack([source.permutation(n) for _ in range(G)]) / 32.0 - 0.25


def run_inputs(policy: Policy, stream: Stream, events: list[Event]) -> dict[str, Array]:
    """Return a stream, and what is drawn while it runs, as inputs."""
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


def finished(
    operation: str,
    method: str | None,
    group: str,
    name: str,
    parameters: Parameters,
    inputs: Inputs,
) -> Case:
    """Round inputs as they are stored, and let the reference answer.

    Raises:
        UncertainError: if a number could be stored in two ways.
    """
    stored = stored_inputs(operation, inputs)
    expected = OPERATIONS[operation].compute(stored, parameters, method)
    target = target_of(operation, method)
    full_name = "/".join(part for part in (target, group, method, name) if part)
    return Case(
        full_name, target, group, method, dict(parameters), stored, stored_expected(expected)
    )


def stored_inputs(operation: str, inputs: Inputs) -> dict[str, Array]:
    """Return inputs with the values that their stored form has."""
    described = OPERATIONS[operation].inputs
    return {
        name: rounded(x)
        if described[name].kind == "float"
        else x.astype(DTYPES[described[name].kind])
        for name, x in inputs.items()
    }


def stored_expected(expected: Mapping[str, Expected]) -> dict[str, Expected]:
    """Return expected values as their stored form has them."""
    return {name: stored_one(each) for name, each in expected.items()}


def stored_one(each: Expected) -> Expected:
    """Round numbers; what is exact is stored as it is."""
    if each.kind != "numbers":
        return each
    value = each.value if each.where is None else np.where(each.where, each.value, 0.0)
    slack = None if each.slack is None else rounded(each.slack)
    return Expected("numbers", rounded(value), each.tolerance, each.where, slack, each.either)


def rounded(x: Array) -> Array:
    """Return what float32 makes of numbers.

    Raises:
        UncertainError: if float64's last digits would decide.
    """
    if not is_safe(x):
        raise UncertainError
    return to_float32(x.astype(np.float64))
