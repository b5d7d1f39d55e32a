"""The steps of a method that can be tested alone: observe, score, keep, select, store; and run.

All are computed through the method's policy: no method is known by name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from kvlab.reference import methods
from kvlab.reference.attention import attend, visible
from kvlab.reference.cache import Column, LayerCache, State
from kvlab.reference.conformance.blocks import logit_size
from kvlab.reference.conformance.case import Expected, Inputs, Parameters
from kvlab.reference.conformance.expecting import exact, keep, numbers, scores
from kvlab.reference.conformance.operation import Field, Operation, described_operation
from kvlab.reference.method import CommonOptions, Wrapper
from kvlab.reference.notation import Array
from kvlab.reference.observation import Clock, Observation
from kvlab.reference.policy import Policy
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.selection import keep_set
from kvlab.reference.step import Block, Look, StepResult, apply, empty_cache, look, select
from kvlab.reference.stored_vectors import StoredVectors
from kvlab.reference.streams import Stream

REMEMBERED = "remembered_"
"""Prefix of what a score remembers of the stream, besides the state of the entries."""


def policy_of(method: str | None, parameters: Parameters) -> Policy:
    """Return the policy that a case is about."""
    assert method is not None
    return methods.get(method, parameters["budget"])


def options_of(method: str) -> dict[str, Any]:
    """Return all hyper-parameters of a method in registry syntax, those of a wrapper first.

    An option that a method has itself hides the one of the same name that every method has.
    """
    parsed = methods.parse(method)
    options = _own_options(parsed)
    while isinstance(parsed, Wrapper):
        common, parsed = isinstance(parsed, CommonOptions), parsed.base
        own = _own_options(parsed)
        options = {**options, **own} if common else {**own, **options}
    return options


def _own_options(parsed: Any) -> dict[str, Any]:
    return {f.name: getattr(parsed, f.name) for f in fields(parsed) if f.name != "base"}


def clock_parameters(clock: Clock) -> dict[str, int]:
    """Return the parameters that say where in the stream a case stands."""
    return {name: getattr(clock, name) for name in ("seen", "block", "prompt", "generated")}


# --- from inputs to the reference's objects, and back --------------------------------------------


def _observation(inputs: Inputs, parameters: Parameters) -> Observation:
    positions = inputs["positions"]
    clock = Clock(parameters["seen"], parameters["block"], parameters["prompt"])
    G, n = positions.shape
    return Observation(
        clock=clock,
        layer=0,
        queries=inputs.get("queries", np.zeros((G, 1, clock.block, 0))),
        attention=inputs.get("attention", np.zeros((G, 1, clock.block, n))),
        keys=inputs.get("keys", np.zeros((G, n, 0))),
        values=inputs.get("values", np.zeros((G, n, 0))),
        positions=positions,
        bits=inputs.get("stored_bits", np.full((G, n), FULL_BITS)),
        confidence=inputs.get("confidence", np.full(clock.seen, np.nan)),
        softcap=parameters.get("softcap"),
    )


def inputs_of(seen: Observation) -> dict[str, Array]:
    """Return the inputs that every step of a method is given."""
    names = ("queries", "keys", "values", "attention", "positions", "query_positions")
    return {name: getattr(seen, name) for name in names}


def _state(policy: Policy, inputs: Inputs) -> State:
    entries = {name: inputs[name] for name in policy.score.columns}
    stream = {
        name.removeprefix(REMEMBERED): x
        for name, x in inputs.items()
        if name.startswith(REMEMBERED)
    }
    return State(entries, stream)


def state_inputs(policy: Policy, state: State) -> dict[str, Array]:
    """Return the state of a score as inputs.

    Raises:
        ValueError: if it remembers something of the stream that is no array of numbers.
    """
    remembered = {REMEMBERED + name: np.asarray(x) for name, x in state.stream.items()}
    for name, x in remembered.items():
        if x.dtype.kind not in "fib":
            raise ValueError(
                f"state.stream[{name.removeprefix(REMEMBERED)!r}] of {policy.name} must be an "
                "array of numbers to be written into a test vector"
            )
    return {**{name: state.entries[name] for name in policy.score.columns}, **remembered}


def stream_from(inputs: Inputs, parameters: Parameters) -> Stream:
    """Rebuild the stream of a run."""
    return Stream(
        inputs["queries"],
        inputs["keys"],
        inputs["values"],
        inputs["confidence"],
        parameters["prompt"],
        tuple(int(m) for m in inputs["blocks"]),
        softcap=parameters.get("softcap"),
    )


def _derive(inputs: Inputs, parameters: Parameters, method: str | None) -> Inputs:
    """Compute attention and drawn numbers anew, which follow from the other inputs."""
    found = dict(inputs)
    if "attention" in inputs:
        mask = visible(inputs["query_positions"], inputs["positions"])
        softcap = parameters.get("softcap")
        found["attention"] = attend(
            inputs["queries"], inputs["keys"], inputs["values"], mask, softcap
        )[1]
    drawn = policy_of(method, parameters).score.drawn(_observation(found, parameters))
    return {**found, **{name: x for name, x in drawn.items() if name in inputs}}


def _size(inputs: Inputs) -> float:
    size = logit_size(inputs["queries"], inputs["keys"])
    remembered = inputs.get(f"{REMEMBERED}queries")
    return size if remembered is None else max(size, logit_size(remembered, inputs["keys"]))


# --- streams -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """The effect of one block on one layer."""

    policy: Policy
    block: Block
    cache: LayerCache
    """Cache before the block."""
    looked: Look
    result: StepResult

    @property
    def before(self) -> State:
        """State before the block was observed; its own entries are there."""
        block, columns = self.block, self.policy.score.columns
        grown = self.cache.append(block.keys, block.values, block.clock.positions, columns)
        return grown.state

    @property
    def stores(self) -> bool:
        """Whether all entries were at full precision before, and some are not any more."""
        was_full = (self.cache.keys.bits == FULL_BITS).all()
        return bool(was_full and (self.result.cache.keys.bits < FULL_BITS).any())

    @property
    def evicts(self) -> bool:
        """Whether an entry left."""
        keep = self.result.keep
        return keep is not None and keep.shape[1] < self.looked.seen.positions.shape[1]


def recording(policy: Policy, stream: Stream) -> Iterator[Event]:
    """Feed a stream to a policy and note every step.

    Raises:
        ValueError: if the policy cannot work with the stream's prompt.
    """
    policy.check(stream.prompt)
    cache = empty_cache(policy, len(stream.keys), stream.keys.shape[2])
    for block in stream.pieces():
        looked = look(policy, cache, block)
        if looked.decision is None:
            result = StepResult(looked.output, looked.cache, looked.seen)
        else:
            result = apply(policy, looked, looked.decision.keep)
        yield Event(policy, block, cache, looked, result)
        cache = result.cache


@dataclass(frozen=True)
class Replayed:
    """What a stream gave under a policy."""

    output: Array
    present: Array
    cache: LayerCache
    drawn: Mapping[str, Array]
    """Random numbers of the last step that drew some."""


def replay(inputs: Inputs, parameters: Parameters, method: str | None) -> Replayed:
    """Feed a stream block by block."""
    policy, stream = policy_of(method, parameters), stream_from(inputs, parameters)
    outputs, present = [], []
    drawn: dict[str, Array] = {}
    cache = empty_cache(policy, len(stream.keys), stream.keys.shape[2])
    for event in recording(policy, stream):
        cache = event.result.cache
        if event.looked.decision is not None:
            drawn |= policy.score.drawn(event.looked.seen)
        outputs.append(event.result.output)
        there = np.zeros((len(stream.keys), stream.tokens), dtype=bool)
        np.put_along_axis(there, cache.positions, True, axis=-1)
        present.append(there)
    return Replayed(np.concatenate(outputs, axis=2), np.array(present), cache, drawn)


# --- what the reference answers ------------------------------------------------------------------


def _expect_state(inputs: Inputs, parameters: Parameters, method: str | None):
    policy = policy_of(method, parameters)
    state = policy.score.observe(_state(policy, inputs), _observation(inputs, parameters))
    return {name: _column(state.entries[name], inputs) for name in policy.score.columns}


def _column(value: Array, inputs: Inputs) -> Expected:
    if np.array_equal(value, np.rint(value)):
        return exact(value)
    return numbers(value, _size(inputs))


def _expect_scores(inputs: Inputs, parameters: Parameters, method: str | None):
    policy, seen = policy_of(method, parameters), _observation(inputs, parameters)
    if policy.score.ordinal:
        raise ValueError(f"{method} gives an order, not scores; test select")
    candidates, room = inputs["candidates"], parameters["room"]
    value = policy.score.score(_state(policy, inputs), seen, candidates, room)
    return {"scores": scores(value, candidates, _size(inputs))}


def _expect_selected(inputs: Inputs, parameters: Parameters, method: str | None):
    policy, seen = policy_of(method, parameters), _observation(inputs, parameters)
    found = select(policy, _state(policy, inputs), seen)
    if policy.score.ordinal or found.scores is None:
        return {"keep": keep(found.keep)}
    rated = scores(found.scores, found.candidates, _size(inputs))
    return {"keep": keep(found.keep, rated, found.candidates)}


def _expect_kept(inputs: Inputs, parameters: Parameters, method: str | None):
    policy, seen = policy_of(method, parameters), _observation(inputs, parameters)
    safe = policy.protect.safe(seen)
    room = policy.budget.room(seen, safe)
    return {"keep": keep(keep_set(inputs["scores"], safe, room))}


def _expect_stored(inputs: Inputs, parameters: Parameters, method: str | None):
    policy, seen = policy_of(method, parameters), _observation(inputs, parameters)
    G, _, d = inputs["keys"].shape
    nothing = StoredVectors.empty(G, d)
    cache = LayerCache(
        nothing.append(inputs["keys"]), nothing.append(inputs["values"]), inputs["positions"]
    )
    cache, stays = policy.precision.store(cache, seen, inputs["keep"])
    return {"keep": keep(stays), **_storage(cache.compact(stays))}


def _storage(cache: LayerCache) -> dict[str, Expected]:
    keys, values = cache.keys.vectors, cache.values.vectors
    return {
        "key_bits": exact(cache.keys.bits),
        "value_bits": exact(cache.values.bits),
        "keys": numbers(keys, scale=float(np.abs(keys).max())),
        "values": numbers(values, scale=float(np.abs(values).max())),
    }


def _expect_run(inputs: Inputs, parameters: Parameters, method: str | None):
    found = replay(inputs, parameters, method)
    size = logit_size(inputs["queries"], inputs["keys"])
    expected = {
        "output": numbers(found.output, size, float(np.abs(inputs["values"]).max())),
        "present": exact(found.present),
    }
    if (found.cache.keys.bits < FULL_BITS).any():
        expected |= _storage(found.cache)
    for name in policy_of(method, parameters).score.columns:
        expected[name] = _column(found.cache.state.entries[name], inputs)
    return expected


def _derive_run(inputs: Inputs, parameters: Parameters, method: str | None) -> Inputs:
    if inputs.keys() <= {"queries", "keys", "values", "blocks", "confidence"}:
        return inputs
    return {**inputs, **replay(inputs, parameters, method).drawn}


STEPS: Mapping[str, Operation] = {
    step.name: step
    for step in (
        described_operation("observe", _expect_state, _derive),
        described_operation("score", _expect_scores, _derive),
        described_operation("select", _expect_selected, _derive),
        described_operation("keep", _expect_kept),
        described_operation("store", _expect_stored, _derive),
        described_operation("run", _expect_run, _derive_run),
    )
}
"""All steps of a method by name, but for what its score remembers of every entry."""


def operations(columns: Mapping[str, Column]) -> Mapping[str, Operation]:
    """Return the steps of a method whose score remembers ``columns`` of every entry."""
    remembered = {name: _column_field(column, True) for name, column in columns.items()}
    asked = {name: _column_field(each, not each.compared) for name, each in columns.items()}
    found = dict(STEPS)
    for name in ("observe", "score", "select"):
        found[name] = replace(found[name], inputs={**found[name].inputs, **remembered})
    for name, outputs in (("observe", asked), ("run", remembered)):
        found[name] = replace(found[name], outputs={**found[name].outputs, **outputs})
    return found


def _column_field(column: Column, optional: bool) -> Field:
    meaning = f"{column.meaning}; a new entry comes with {column.start:g}"
    return Field(("G", "n"), "int" if column.integer else "float", meaning, optional)
