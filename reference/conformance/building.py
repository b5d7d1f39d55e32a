"""Makes cases of the steps of methods, from the steps of a stream; and cases of drawn inputs.

Published vectors were made so, too, by the commit 16146a8; see `vectors`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvlab.reference import methods
from kvlab.reference.conformance import draws, stages, whole_cache
from kvlab.reference.conformance.blocks import logit_size
from kvlab.reference.conformance.case import Case, Inputs, Parameters
from kvlab.reference.conformance.groups import (
    OPTION,
    OPTIONS,
    SIZED,
    TIED,
    examples_of,
    groups_of,
    is_option,
    stream_of,
)
from kvlab.reference.conformance.stages import Event, recording
from kvlab.reference.conformance.targets import described, operation_of, target_of
from kvlab.reference.method import Example
from kvlab.reference.notation import Array
from kvlab.reference.policy import Full, Policy, Unlimited
from kvlab.reference.streams import Source, Stream, random_stream

ATTEMPTS = 20
"""Most streams that are drawn until one has clear decisions only."""

CLEAR = 1e-4
"""Least relative distance between the lowest score that stays and the highest that goes."""

CLEAR_PER_LOGIT = 4e-6
"""The same, for every unit of the largest logit, whose error is relative to it."""

NUDGE = 1e-5
"""Relative noise on the inputs that must not change the result of a stream."""

NUDGES = 4


def answered(case: Case, inputs: Inputs, parameters: Parameters) -> Case | None:
    """Return a case with other inputs and the reference's answer; None if they are not valid."""
    operation = described(case)
    try:
        with np.errstate(all="ignore"):
            whole = inputs
            if operation.derive is not None:
                whole = operation.derive(inputs, parameters, case.method)
            stored = {
                name: x.astype(np.float32).astype(np.float64) if x.dtype.kind == "f" else x
                for name, x in whole.items()
            }
            expected = operation.compute(stored, parameters, case.method)
    except (ValueError, IndexError):
        return None
    if any(
        np.isnan(each.value).any() for each in expected.values() if each.value.dtype.kind == "f"
    ):
        return None
    return replace(case, inputs=stored, parameters=parameters, expected=expected)


def _case_of(
    operation: str,
    method: str | None,
    group: str,
    number: str,
    inputs: Inputs,
    parameters: Parameters,
) -> Case:
    """Return a case with the reference's answer.

    Raises:
        ValueError: if the reference refuses its own inputs.
    """
    target = target_of(operation, method)
    name = "/".join(part for part in (target, group, method, number) if part)
    blank = Case(name, target, group, method, parameters, inputs, {})
    case = answered(blank, inputs, parameters)
    if case is None:
        raise ValueError(f"the reference refuses its own inputs of {name}")
    return case


# --- drawn cases ---------------------------------------------------------------------------------


def sized_cases(size: str, seed: int, wanted: Callable[[str], bool]) -> Iterator[Case]:
    """Draw the cases of a size of all targets that are wanted.

    Args:
        size: ``kernel`` or ``long``.
        seed: other seeds draw other numbers of the same shapes.
        wanted: whether a target is tested.
    """
    for operation, group, number, sizes in draws.sized(size):
        if wanted(operation):
            source = Source(f"{size} {operation} {group} {number}", seed)
            drawn = draws.BLOCKS[operation](source, **sizes)
            assert drawn is not None
            yield _case_of(operation, None, group, str(number), *drawn)
    for example in (each for name in methods.names() for each in methods.examples_of(name)):
        steps = [name for name in stages.STEPS if wanted(target_of(name, example.spec))]
        if steps and not is_option(example):
            yield from _sized_steps(example, size, seed, steps)


def _sized_steps(example: Example, size: str, seed: int, steps: Sequence[str]) -> Iterator[Case]:
    for group, sized in SIZED[size].items():
        stream = sized.draw(Source(f"{size} {group} {example.spec}", seed))
        budget = None if example.budget is None else sized.budget
        policy = methods.get(example.spec, budget)
        if sized.counters and not any(each.integer for each in policy.score.columns.values()):
            continue
        try:
            events = [*recording(policy, stream)]
        except ValueError:  # a prompt that the method protects and that exceeds the budget
            continue
        kinds = {}
        for event in _deciding(events):
            clock = event.block.clock
            kinds[clock.prefilling, clock.block > 1] = event
        clear = all(_is_clear(event, example.ties) for event in events)
        ready = [name for name in steps if name != "run" or clear]
        given = replace(example, budget=budget), stream, events
        yield from cases_of_stream(*given, [*kinds.values()], group, ready)


Choose = Callable[[Sequence[Any]], Any]
"""Chooses one of several values; the first is the simplest."""

SEEDS = range(2**31)
"""Seeds among which one is chosen."""


def drawn_case(target: str, choose: Choose) -> Case | None:
    """Draw a small case of any target but whole caches; None if what was chosen does not fit.

    Raises:
        ValueError: if the target is unknown, or a whole cache: its streams are not drawn.
    """
    method, _, operation = target.rpartition(".")
    if operation == "whole_cache":
        raise ValueError(f"target = {target!r} must not be a whole cache: run its vectors")
    if not operation_of(target).of_method:
        sizes = {name: choose(values) for name, values in draws.SMALL[target].items()}
        drawn = draws.BLOCKS[target](Source(f"drawn {target}", choose(SEEDS)), **sizes)
        return None if drawn is None else _case_of(target, None, "drawn", "", *drawn)
    example = choose(examples_of(method))
    prompt = choose(range(1, 25))
    G, rho = choose([(1, 1), (1, 4), (2, 1), (2, 3)])
    d, generated, block = choose([4, 8, 12]), choose(range(13)), choose(range(1, prompt + 1))
    source = Source("drawn stream", choose(SEEDS))
    stream = random_stream(source, G, rho, d, prompt, generated, block)
    policy = methods.get(example.spec, example.budget)
    try:
        events = [*recording(policy, stream)]
    except ValueError:  # the policy cannot work with the length of this prompt
        return None
    if operation == "run" and not all(_is_clear(event, False) for event in events):
        return None
    due = [event for event in events if event.looked.decision is not None]
    found = [*cases_of_stream(example, stream, events, due, "drawn", [operation])]
    return choose(found) if found else None


# --- cases of methods ----------------------------------------------------------------------------


def made_of_examples(name: str) -> Iterator[Case]:
    """Make the cases of a method from its examples, but for groups that are never clear."""
    for example in methods.examples_of(name):
        for group in groups_of(example):
            for ties in dict.fromkeys((example.ties, True)):
                found = _clear_cases(replace(example, ties=ties), group)
                if found is not None:
                    yield from found
                    break


def _clear_cases(example: Example, group: str) -> list[Case] | None:
    """Return the cases of an example in a group, from the first stream that is clear; or None."""
    tied = example.ties or group in TIED
    for attempt in range(ATTEMPTS):
        stream = stream_of(group, attempt)
        budget = stream.tokens if group == "budget_ge_length" else example.budget
        policy = methods.get(example.spec, budget)
        events = _clear_events(policy, stream, tied)
        if events is None:
            continue
        given = replace(example, budget=budget), stream, events
        cases = [*cases_of_stream(*given, _chosen(events, group), group, tuple(stages.STEPS))]
        if all(_is_steady(case, policy) for case in cases if case.operation == "run"):
            return cases
    return None


def _clear_events(policy: Policy, stream: Stream, tied: bool) -> list[Event] | None:
    """Return every step of a stream, or None if the scores of a step do not decide clearly."""
    events = []
    for event in recording(policy, stream):
        if not _is_clear(event, tied):
            return None
        events.append(event)
    return events


def _is_clear(event: Event, tied: bool) -> bool:
    """Whether the scores decide clearly; equal scores count as clear if ``tied``."""
    decision, seen = event.looked.decision, event.looked.seen
    if not event.evicts or event.policy.score.ordinal:
        return True
    assert decision is not None and decision.scores is not None
    stays = np.zeros_like(decision.candidates)
    np.put_along_axis(stays, decision.keep, True, axis=-1)
    clear = CLEAR + CLEAR_PER_LOGIT * logit_size(seen.queries, seen.keys)
    for scores, candidates, kept in zip(decision.scores, decision.candidates, stays, strict=True):
        if not (candidates & kept).any() or not (candidates & ~kept).any():
            continue
        low, high = scores[candidates & kept].min(), scores[candidates & ~kept].max()
        if not (low == high and tied) and not low - high > clear * max(abs(low), abs(high)):
            return False
    return True


def _is_steady(case: Case, policy: Policy) -> bool:
    """Whether a stream ends the same if its inputs are a little off.

    Keys and values that are quantised are left alone: their codes are exact.
    """
    names = ("queries", "keys", "values") if isinstance(policy.precision, Full) else ("queries",)
    expected = stages.replay(case.inputs, case.parameters, case.method)
    source = Source(case.name)
    allowed = 4e-3 + 40 * NUDGE * logit_size(case.inputs["queries"], case.inputs["keys"])
    for _ in range(NUDGES):
        nudged = {
            name: x * (1 + NUDGE * source.normal(*x.shape)) if name in names else x
            for name, x in case.inputs.items()
        }
        found = stages.replay(nudged, case.parameters, case.method)
        off = np.abs(found.output - expected.output).max()
        if not np.array_equal(found.present, expected.present) or off > allowed:
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
    return _clear_events(policy, stream, case.group in TIED) is not None


def _deciding(events: list[Event]) -> list[Event]:
    return [
        event
        for event in events
        if event.looked.decision is not None and (event.evicts or event.stores)
    ]


def _chosen(events: list[Event], group: str) -> list[Event]:
    """Return the first block of several tokens that decides, the last block that decides, and the
    first that stores."""
    deciding = _deciding(events)
    if not deciding:
        due = [event for event in events if event.looked.decision is not None]
        return due[-1:] if group == "budget_ge_length" else []
    wide = [event for event in deciding if event.block.clock.block > 1][:1]
    storing = [event for event in deciding if event.stores][:1]
    picked = {id(event): event for event in (*wide, deciding[-1], *storing)}
    return [*picked.values()]


def cases_of_stream(
    example: Example,
    stream: Stream,
    events: list[Event],
    chosen: list[Event],
    group: str,
    steps: Iterable[str],
) -> Iterator[Case]:
    """Take cases from a stream.

    Args:
        example: method and budget.
        stream: the stream.
        events: all its steps.
        chosen: the steps of which cases are made.
        group: of the cases.
        steps: names of the steps of a method of which cases are made; ``run`` is the whole stream.
    """
    spec, prefix = example.spec, ""
    if group in OPTION and is_option(example):
        group, prefix = OPTIONS, f"{group}-"
    stages_of = {"softcap": stream.softcap, "prompt": stream.prompt}
    parameters = {**stages.options_of(spec), "budget": example.budget, **stages_of}
    for number, event in enumerate(chosen):
        here = parameters | stages.clock_parameters(event.block.clock)
        for operation, inputs, more in _event_inputs(event, group):
            if operation in steps:
                name = f"{prefix}{number}"
                yield _case_of(operation, spec, group, name, inputs, {**here, **more})
    if "run" in steps and stream.first == 0:
        yield _case_of("run", spec, group, f"{prefix}0", _run_inputs(stream, events), parameters)


def _event_inputs(
    event: Event, group: str
) -> Iterator[tuple[str, dict[str, Array], dict[str, int]]]:
    """Return name, inputs and further parameters of the steps that a block shows."""
    policy, seen = event.policy, event.looked.seen
    score, after = policy.score, event.looked.cache.state
    common = stages.inputs_of(seen)
    stored = {"stored_bits": seen.bits, "confidence": seen.confidence}
    more = {} if isinstance(policy.precision, Full) else stored
    decision = event.looked.decision
    if score.columns:
        yield "observe", {**common, **stages.state_inputs(policy, event.before)}, {}
    if decision is None:
        return
    if not isinstance(policy.budget, Unlimited):
        state = stages.state_inputs(policy, after)
        candidates, keep = decision.candidates, decision.keep
        room = keep.shape[1] - int((~candidates).sum(axis=-1).max())
        if not score.ordinal and candidates.any():
            yield "score", {**common, **state, "candidates": candidates}, {"room": room}
        yield "select", {**common, **state, **more, **score.drawn(seen)}, {}
        yield (
            "keep",
            {"scores": _given_scores(seen, group), "positions": seen.positions, **more},
            {},
        )
    if event.stores:
        yield "store", {**common, "confidence": seen.confidence, "keep": decision.keep}, {}


def _given_scores(seen: Any, group: str) -> Array:
    """Draw scores that do not follow from attention; groups about equal scores get many."""
    G, n = seen.positions.shape
    source = Source(f"scores {group} {G} {n}")
    if group in TIED:
        return source.integers(0, 3, G, n) / 2.0
    return np.stack([source.permutation(n) for _ in range(G)]) / 32.0 - 0.25


def _run_inputs(stream: Stream, events: list[Event]) -> dict[str, Array]:
    drawn: dict[str, Array] = {}
    for event in events:
        if event.looked.decision is not None:
            drawn |= event.policy.score.drawn(event.looked.seen)
    return {
        "queries": stream.queries,
        "keys": stream.keys,
        "values": stream.values,
        "blocks": np.array(stream.blocks),
        "confidence": stream.confidence,
        **drawn,
    }
