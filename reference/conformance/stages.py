"""The steps of a method that can be tested alone: observe, score, keep, select, store; and run.

All are computed through the method's policy: no method is known by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from kvlab.reference import methods
from kvlab.reference.attention import attend, visible
from kvlab.reference.cache import LayerCache, State
from kvlab.reference.conformance.blocks import (
    KEYS,
    POSITIONS,
    QUERIES,
    QUERY_POSITIONS,
    SOFTCAP,
    VALUES,
    logit_size,
)
from kvlab.reference.conformance.case import Expected, Inputs, Parameters
from kvlab.reference.conformance.expecting import exact, keep, numbers, scores
from kvlab.reference.conformance.operation import Operation, floats, marks, whole
from kvlab.reference.notation import Array
from kvlab.reference.policy import (
    Block,
    Clock,
    Observation,
    Policy,
    empty_cache,
    select,
    step,
)
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.selection import keep_set
from kvlab.reference.storage import Storage

REMEMBERED = "remembered_"
"""Prefix of what a score remembers of the stream, besides the state of the entries."""

CLOCK = {
    "seen": "tokens seen, this block included: the absolute position of the next token",
    "block": "tokens of this block",
    "prompt": "tokens of the prompt",
    "generated": "tokens seen after the prompt",
    "budget": "entries that may stay per KV head; none where the method sizes itself",
}


def policy_of(method: str | None, parameters: Parameters) -> Policy:
    """Return the policy that a case is about."""
    assert method is not None
    return methods.get(method, parameters["budget"])


def options_of(method: str) -> dict[str, Any]:
    """Return all hyper-parameters of a method in registry syntax, those of a wrapper first."""
    parsed = methods.parse(method)
    options = plain_fields(parsed)
    base = getattr(parsed, "base", None)
    return options if base is None else {**plain_fields(base), **options}


def plain_fields(parsed: Any) -> dict[str, Any]:
    """Return the fields that are no method themselves."""
    return {f.name: getattr(parsed, f.name) for f in fields(parsed) if f.name != "base"}


def clock_of(parameters: Parameters) -> Clock:
    """Return where in the stream a case stands."""
    return Clock(parameters["seen"], parameters["block"], parameters["prompt"])


def clock_parameters(clock: Clock) -> dict[str, int]:
    """Return what a case says about where it stands."""
    return {
        "seen": clock.seen,
        "block": clock.block,
        "prompt": clock.prompt,
        "generated": clock.generated,
    }


# --- from inputs to the reference's objects, and back --------------------------------------------


def observation_of(inputs: Inputs, parameters: Parameters) -> Observation:
    """Rebuild what a block saw."""
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
    """Return what every step of a method is given."""
    return {
        "queries": seen.queries,
        "keys": seen.keys,
        "values": seen.values,
        "attention": seen.attention,
        "positions": seen.positions,
        "query_positions": seen.query_positions,
    }


def state_of(policy: Policy, inputs: Inputs) -> State:
    """Rebuild what a score remembers."""
    entries = {name: inputs[name] for name in policy.score.columns}
    stream = {
        name.removeprefix(REMEMBERED): x
        for name, x in inputs.items()
        if name.startswith(REMEMBERED)
    }
    return State(entries, stream)


def state_inputs(policy: Policy, state: State) -> dict[str, Array]:
    """Return what a score remembers, as inputs."""
    remembered = {REMEMBERED + name: x for name, x in state.stream.items()}
    return {**{name: state.entries[name] for name in policy.score.columns}, **remembered}


def derive(inputs: Inputs, parameters: Parameters, method: str | None) -> Inputs:
    """Compute anew what follows from other inputs: attention, and what is drawn."""
    found = dict(inputs)
    if "attention" in inputs:
        mask = visible(inputs["query_positions"], inputs["positions"])
        softcap = parameters.get("softcap")
        found["attention"] = attend(
            inputs["queries"], inputs["keys"], inputs["values"], mask, softcap
        )[1]
    if "noise" in inputs:
        seen = observation_of(found, parameters)
        found.update(policy_of(method, parameters).score.drawn(seen))
    return found


def size_of(inputs: Inputs) -> float:
    """Size of the logits that a step of a method may compute."""
    size = logit_size(inputs["queries"], inputs["keys"])
    remembered = inputs.get(f"{REMEMBERED}queries")
    return size if remembered is None else max(size, logit_size(remembered, inputs["keys"]))


# --- what the reference answers ------------------------------------------------------------------


def expect_state(inputs: Inputs, parameters: Parameters, method: str | None):
    """State of the entries after a block."""
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
    """Worth of every candidate."""
    if policy_of(method, parameters).score.ordinal:
        raise ValueError(f"{method} gives an order, not scores; test select")
    return {"scores": rated(inputs, parameters, method)}


def expect_selected(inputs: Inputs, parameters: Parameters, method: str | None):
    """Who stays, from everything that a block saw."""
    policy, seen = policy_of(method, parameters), observation_of(inputs, parameters)
    candidates, indices = select(policy, state_of(policy, inputs), seen)
    if policy.score.ordinal or not candidates.any():
        return {"keep": keep(indices)}
    room = indices.shape[1] - int((~candidates).sum(axis=-1).max())
    given = {**inputs, "candidates": candidates}
    return {"keep": keep(indices, rated(given, {**parameters, "room": room}, method), candidates)}


def expect_kept(inputs: Inputs, parameters: Parameters, method: str | None):
    """Who stays, from given scores: protection, budget and the rule for equal scores."""
    policy, seen = policy_of(method, parameters), observation_of(inputs, parameters)
    safe = policy.protect.safe(seen)
    room = policy.budget.room(seen, safe)
    return {"keep": keep(keep_set(inputs["scores"], safe, room))}


def expect_stored(inputs: Inputs, parameters: Parameters, method: str | None):
    """Who stays at which precision, and what attention reads of it."""
    policy, seen = policy_of(method, parameters), observation_of(inputs, parameters)
    G, _, d = inputs["keys"].shape
    nothing = Storage.empty(G, d)
    cache = LayerCache(
        nothing.append(inputs["keys"]), nothing.append(inputs["values"]), inputs["positions"]
    )
    candidates = ~policy.protect.safe(seen)
    cache, stays = policy.precision.store(cache, seen, candidates, inputs["keep"])
    return {"keep": keep(stays), **stored_expected(cache.compact(stays))}


def stored_expected(cache: LayerCache) -> dict[str, Expected]:
    """Expect widths, and vectors as attention reads them."""
    keys, values = cache.keys.read(), cache.values.read()
    return {
        "key_bits": exact(cache.keys.bits),
        "value_bits": exact(cache.values.bits),
        "keys": numbers(keys, scale=float(np.abs(keys).max())),
        "values": numbers(values, scale=float(np.abs(values).max())),
    }


@dataclass(frozen=True)
class Replayed:
    """What a stream did under a policy."""

    output: Array
    present: Array
    cache: LayerCache
    drawn: Mapping[str, Array]
    """Random numbers of the last step that drew some."""


def replay(inputs: Inputs, parameters: Parameters, method: str | None) -> Replayed:
    """Feed a stream block by block."""
    policy = policy_of(method, parameters)
    policy.check(parameters["prompt"])
    G, _, t, d = inputs["queries"].shape
    cache, outputs, present, seen = empty_cache(policy, G, d), [], [], 0
    drawn: dict[str, Array] = {}
    for m in inputs["blocks"]:
        part = slice(seen, seen + m)
        seen += int(m)
        block = Block(
            Clock(seen, int(m), parameters["prompt"]),
            0,
            inputs["queries"][:, :, part],
            inputs["keys"][:, part],
            inputs["values"][:, part],
            inputs["confidence"][:seen],
            softcap=parameters.get("softcap"),
        )
        result = step(policy, cache, block)
        cache = result.cache
        if result.keep is not None:
            drawn |= policy.score.drawn(result.seen)
        outputs.append(result.output)
        there = np.zeros((G, t), dtype=bool)
        np.put_along_axis(there, cache.positions, True, axis=-1)
        present.append(there)
    return Replayed(np.concatenate(outputs, axis=2), np.array(present), cache, drawn)


def expect_run(inputs: Inputs, parameters: Parameters, method: str | None):
    """Output of every token, survivors after every block, storage and state after the last."""
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
    """Draw anew what a policy draws while a stream runs."""
    if "noise" not in inputs:
        return inputs
    return {**inputs, **replay(inputs, parameters, method).drawn}


OBSERVED = {
    "queries": QUERIES,
    "keys": KEYS,
    "values": VALUES,
    "attention": floats("G", "rho", "m", "n", meaning="probabilities of this block's queries"),
    "positions": POSITIONS,
    "query_positions": QUERY_POSITIONS,
}
STATE = {
    "accumulated": floats("G", "n", meaning="attention received so far", optional=True),
    "stamp": whole("G", "n", meaning="generated step of the latest use", optional=True),
    "interval": whole("G", "n", meaning="longest steps between two uses (MRI)", optional=True),
    "activated": whole("G", "n", meaning="1 once the entry was used", optional=True),
    f"{REMEMBERED}queries": floats(
        "G", "rho", "w", "d", meaning="the last queries of the stream", optional=True
    ),
    f"{REMEMBERED}query_positions": whole("w", meaning="their positions", optional=True),
}
CANDIDATES = marks("G", "n", meaning="entries that may leave")
NOISE = floats("G", "n", meaning="Gumbel noise of the random part", optional=True)
CONFIDENCE = floats(
    "t",
    meaning="largest probability behind each token, NaN for given ones",
    optional=True,
)
BITS = whole("G", "n", meaning="bits per element of the stored keys", optional=True)
KEEP = whole("G", "kept", meaning="indices that stay, ascending")
COMMON = {**CLOCK, **SOFTCAP}
AFTER = {
    "key_bits": whole("G", "kept", meaning="bits per element of keys"),
    "value_bits": whole("G", "kept", meaning="bits per element of values"),
    "keys": floats("G", "kept", "d", meaning="keys as attention reads them"),
    "values": floats("G", "kept", "d", meaning="values as attention reads them"),
}

OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            "observe",
            "State of the entries after a block, from the state before it.",
            "the method's running sums and counters",
            {**OBSERVED, **STATE},
            {name: replace(field, optional=name == "activated") for name, field in STATE.items()},
            COMMON,
            expect_state,
            derive,
            of_method=True,
        ),
        Operation(
            "score",
            "What every candidate is worth, after the block was observed.",
            "the method's score",
            {**OBSERVED, **STATE, "candidates": CANDIDATES, "confidence": CONFIDENCE},
            {"scores": floats("G", "n", meaning="higher stays; only candidates are compared")},
            {**COMMON, "room": "candidates that may stay"},
            expect_scores,
            derive,
            of_method=True,
        ),
        Operation(
            "select",
            "Who stays after a block, from everything it saw; either of two equal scores may stay.",
            "the method's score, protection and budget",
            {**OBSERVED, **STATE, "stored_bits": BITS, "confidence": CONFIDENCE, "noise": NOISE},
            {"keep": KEEP},
            COMMON,
            expect_selected,
            derive,
            of_method=True,
        ),
        Operation(
            "keep",
            "Who stays, from given scores: protection, budget, and the later of equal scores.",
            "the method's protection and budget",
            {
                "scores": floats("G", "n", meaning="higher stays"),
                "positions": POSITIONS,
                "stored_bits": BITS,
                "confidence": CONFIDENCE,
            },
            {"keep": KEEP},
            CLOCK,
            expect_kept,
            of_method=True,
        ),
        Operation(
            "store",
            "Who stays at which precision, from a selection; entries were all at 16 bits before.",
            "the method's precision",
            {**OBSERVED, "keep": KEEP, "confidence": CONFIDENCE},
            {"keep": KEEP, **AFTER},
            COMMON,
            expect_stored,
            derive,
            of_method=True,
        ),
        Operation(
            "run",
            "A whole stream, block by block: outputs, survivors, storage, and state at the end.",
            "the method",
            {
                "queries": floats("G", "rho", "t", "d", meaning="of every token"),
                "keys": floats("G", "t", "d", meaning="of every token"),
                "values": floats("G", "t", "d", meaning="of every token"),
                "blocks": whole("blocks", meaning="tokens of each block, in order"),
                "confidence": replace(CONFIDENCE, optional=False),
                "noise": NOISE,
            },
            {
                "output": floats("G", "rho", "t", "d", meaning="attention output of every token"),
                "present": marks(
                    "blocks", "G", "t", meaning="positions in the cache after each block"
                ),
                **{name: replace(field, optional=True) for name, field in AFTER.items()},
                **{name: replace(field, optional=True) for name, field in STATE.items()},
            },
            {"prompt": CLOCK["prompt"], "budget": CLOCK["budget"], **SOFTCAP},
            expect_run,
            derive_run,
            of_method=True,
        ),
    )
}
"""All steps of a method by name."""
