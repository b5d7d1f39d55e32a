"""The steps of a method that can be tested alone: observe, score, keep, select, store; and run.

All are computed through the method's policy: no method is known by name.
"""

from collections.abc import Mapping
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
from kvlab.reference.step import empty_cache, select
from kvlab.reference.stored_vectors import StoredVectors
from kvlab.reference.streams import Stream, run_stream

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
    options = plain_fields(parsed)
    while isinstance(parsed, Wrapper):
        common, parsed = isinstance(parsed, CommonOptions), parsed.base
        own = plain_fields(parsed)
        options = {**options, **own} if common else {**own, **options}
    return options


def plain_fields(parsed: Any) -> dict[str, Any]:
    """Return the fields that are no method themselves."""
    return {f.name: getattr(parsed, f.name) for f in fields(parsed) if f.name != "base"}


def clock_of(parameters: Parameters) -> Clock:
    """Return where in the stream a case stands."""
    return Clock(parameters["seen"], parameters["block"], parameters["prompt"])


def clock_parameters(clock: Clock) -> dict[str, int]:
    """Return the parameters that say where in the stream a case stands."""
    return {
        "seen": clock.seen,
        "block": clock.block,
        "prompt": clock.prompt,
        "generated": clock.generated,
    }


# --- from inputs to the reference's objects, and back --------------------------------------------


def observation_of(inputs: Inputs, parameters: Parameters) -> Observation:
    """Rebuild the observation of a block."""
    positions, clock = inputs["positions"], clock_of(parameters)
    G, n = positions.shape
    nothing = np.zeros((G, 1, clock.block, 0))
    return Observation(
        clock=clock,
        layer=0,
        queries=inputs.get("queries", nothing),
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
    return {
        "queries": seen.queries,
        "keys": seen.keys,
        "values": seen.values,
        "attention": seen.attention,
        "positions": seen.positions,
        "query_positions": seen.query_positions,
    }


def state_of(policy: Policy, inputs: Inputs) -> State:
    """Rebuild the state of a score."""
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


def derive(inputs: Inputs, parameters: Parameters, method: str | None) -> Inputs:
    """Compute attention and drawn numbers anew, which follow from the other inputs."""
    found = dict(inputs)
    if "attention" in inputs:
        mask = visible(inputs["query_positions"], inputs["positions"])
        softcap = parameters.get("softcap")
        found["attention"] = attend(
            inputs["queries"], inputs["keys"], inputs["values"], mask, softcap
        )[1]
    drawn = policy_of(method, parameters).score.drawn(observation_of(found, parameters))
    return {**found, **{name: x for name, x in drawn.items() if name in inputs}}


def size_of(inputs: Inputs) -> float:
    """Size of the logits that a step of a method may compute."""
    size = logit_size(inputs["queries"], inputs["keys"])
    remembered = inputs.get(f"{REMEMBERED}queries")
    return size if remembered is None else max(size, logit_size(remembered, inputs["keys"]))


# --- what the reference answers ------------------------------------------------------------------


def expect_state(inputs: Inputs, parameters: Parameters, method: str | None):
    """Expect the state of the entries after a block."""
    policy = policy_of(method, parameters)
    state = policy.score.observe(state_of(policy, inputs), observation_of(inputs, parameters))
    return {name: state_expected(state.entries[name], inputs) for name in policy.score.columns}


def state_expected(value: Array, inputs: Inputs) -> Expected:
    """Counters are exact, sums are not."""
    if np.array_equal(value, np.rint(value)):
        return exact(value)
    return numbers(value, size_of(inputs))


def rated(inputs: Inputs, parameters: Parameters, method: str | None) -> Expected:
    """Return the scores of the candidates."""
    policy, seen = policy_of(method, parameters), observation_of(inputs, parameters)
    candidates, room = inputs["candidates"], parameters["room"]
    value = policy.score.score(state_of(policy, inputs), seen, candidates, room)
    return scores(value, candidates, size_of(inputs))


def expect_scores(inputs: Inputs, parameters: Parameters, method: str | None):
    """Expect the score of every candidate."""
    if policy_of(method, parameters).score.ordinal:
        raise ValueError(f"{method} gives an order, not scores; test select")
    return {"scores": rated(inputs, parameters, method)}


def expect_selected(inputs: Inputs, parameters: Parameters, method: str | None):
    """Expect the keep set that follows from everything that a block saw."""
    policy, seen = policy_of(method, parameters), observation_of(inputs, parameters)
    decision = select(policy, state_of(policy, inputs), seen)
    candidates = decision.candidates
    if policy.score.ordinal or not candidates.any():
        return {"keep": keep(decision.keep)}
    given = {**inputs, "candidates": candidates}
    scores = rated(given, {**parameters, "room": decision.room}, method)
    return {"keep": keep(decision.keep, scores, candidates)}


def expect_kept(inputs: Inputs, parameters: Parameters, method: str | None):
    """Expect the keep set that follows from given scores: protection, budget, equal scores."""
    policy, seen = policy_of(method, parameters), observation_of(inputs, parameters)
    safe = policy.protect.safe(seen)
    room = policy.budget.room(seen, safe)
    return {"keep": keep(keep_set(inputs["scores"], safe, room))}


def expect_stored(inputs: Inputs, parameters: Parameters, method: str | None):
    """Expect the entries that stay, their bits, and the vectors that attention reads."""
    policy, seen = policy_of(method, parameters), observation_of(inputs, parameters)
    G, _, d = inputs["keys"].shape
    nothing = StoredVectors.empty(G, d)
    cache = LayerCache(
        nothing.append(inputs["keys"]), nothing.append(inputs["values"]), inputs["positions"]
    )
    candidates = ~policy.protect.safe(seen)
    cache, stays = policy.precision.store(cache, seen, candidates, inputs["keep"])
    return {"keep": keep(stays), **stored_expected(cache.compact(stays))}


def stored_expected(cache: LayerCache) -> dict[str, Expected]:
    """Expect widths, and vectors as attention reads them."""
    keys, values = cache.keys.vectors, cache.values.vectors
    return {
        "key_bits": exact(cache.keys.bits),
        "value_bits": exact(cache.values.bits),
        "keys": numbers(keys, scale=float(np.abs(keys).max())),
        "values": numbers(values, scale=float(np.abs(values).max())),
    }


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
    for result in run_stream(policy, stream):
        cache = result.cache
        if result.keep is not None:
            drawn |= policy.score.drawn(result.seen)
        outputs.append(result.output)
        there = np.zeros((len(stream.keys), stream.tokens), dtype=bool)
        np.put_along_axis(there, cache.positions, True, axis=-1)
        present.append(there)
    return Replayed(np.concatenate(outputs, axis=2), np.array(present), cache, drawn)


def expect_run(inputs: Inputs, parameters: Parameters, method: str | None):
    """Expect every token's output, the survivors of every block, storage and state at the end."""
    found = replay(inputs, parameters, method)
    size = logit_size(inputs["queries"], inputs["keys"])
    expected = {
        "output": numbers(found.output, size, float(np.abs(inputs["values"]).max())),
        "present": exact(found.present),
    }
    if not np.array_equal(found.cache.keys.bits, np.full_like(found.cache.positions, FULL_BITS)):
        expected |= stored_expected(found.cache)
    for name in policy_of(method, parameters).score.columns:
        expected[name] = state_expected(found.cache.state.entries[name], inputs)
    return expected


def derive_run(inputs: Inputs, parameters: Parameters, method: str | None) -> Inputs:
    """Draw the numbers anew that a policy draws while a stream runs."""
    if inputs.keys() <= {"queries", "keys", "values", "blocks", "confidence"}:
        return inputs
    return {**inputs, **replay(inputs, parameters, method).drawn}


def column_field(column: Column, optional: bool = True) -> Field:
    """Describe a column of a score's state as an array."""
    meaning = f"{column.meaning}; a new entry comes with {column.start:g}"
    return Field(("G", "n"), "int" if column.integer else "float", meaning, optional)


STEPS: Mapping[str, Operation] = {
    step.name: step
    for step in (
        described_operation("observe", expect_state, derive),
        described_operation("score", expect_scores, derive),
        described_operation("select", expect_selected, derive),
        described_operation("keep", expect_kept),
        described_operation("store", expect_stored, derive),
        described_operation("run", expect_run, derive_run),
    )
}
"""All steps of a method by name, but for what its score remembers of every entry."""


def operations(columns: Mapping[str, Column]) -> Mapping[str, Operation]:
    """Return the steps of a method whose score remembers ``columns`` of every entry."""
    remembered = {name: column_field(column) for name, column in columns.items()}
    asked = {name: column_field(column, not column.compared) for name, column in columns.items()}
    found = dict(STEPS)
    for name in ("observe", "score", "select"):
        found[name] = replace(found[name], inputs={**found[name].inputs, **remembered})
    for name, outputs in (("observe", asked), ("run", remembered)):
        found[name] = replace(found[name], outputs={**found[name].outputs, **outputs})
    return found
