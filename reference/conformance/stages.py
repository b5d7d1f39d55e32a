"""The steps of a method that can be tested alone: observe, score, keep, select, store; and run.

All are computed through the method's policy: no method is known by name. Each function is given
the inputs and parameters of a case by name, and ``method``.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvlab.reference import methods
from kvlab.reference.cache import LayerCache, State
from kvlab.reference.conformance.expecting import exact, keep, largest, logit_size, numbers, scores
from kvlab.reference.conformance.operation import answers
from kvlab.reference.conformance.vectors import Expected
from kvlab.reference.notation import Array
from kvlab.reference.observation import Clock, Observation
from kvlab.reference.policy import Policy
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.selection import keep_set
from kvlab.reference.step import select
from kvlab.reference.stored_vectors import StoredVectors
from kvlab.reference.streams import Stream, run_stream

REMEMBERED = "remembered_"
"""Prefix of what a score remembers of the stream, besides the state of the entries."""

Given = Mapping[str, Any]


def _situation(given: Given) -> tuple[Policy, State, Observation]:
    """Return the policy, the state of the entries, and what the block saw."""
    policy, positions = methods.get(given["method"], given["budget"]), given["positions"]
    clock = Clock(given["seen"], given["block"], given["prompt"])
    G, n = positions.shape
    seen = Observation(
        clock=clock,
        layer=0,
        queries=given.get("queries", np.zeros((G, 1, clock.block, 0))),
        attention=given.get("attention", np.zeros((G, 1, clock.block, n))),
        keys=given.get("keys", np.zeros((G, n, 0))),
        values=given.get("values", np.zeros((G, n, 0))),
        positions=positions,
        bits=given.get("stored_bits", np.full((G, n), FULL_BITS)),
        confidence=given.get("confidence", np.full(clock.seen, np.nan)),
        softcap=given.get("softcap"),
    )
    entries = {name: given[name] for name in policy.score.columns if name in given}
    stream = {
        name.removeprefix(REMEMBERED): x for name, x in given.items() if name.startswith(REMEMBERED)
    }
    return policy, State(entries, stream), seen


def _size(given: Given) -> float:
    """Return the largest size of a logit, of earlier queries that a score remembers, too."""
    remembered = given.get(f"{REMEMBERED}queries", given["queries"])
    return max(logit_size(queries, given["keys"]) for queries in (given["queries"], remembered))


def _column(value: Array, size: float) -> Expected:
    counts = np.array_equal(value, np.rint(value))
    return exact(value) if counts else numbers(value, size)


@answers("observe")
def _observe(**given):
    policy, state, seen = _situation(given)
    after = policy.score.observe(state, seen)
    return {name: _column(after.entries[name], _size(given)) for name in policy.score.columns}


@answers("score")
def _score(**given):
    policy, state, seen = _situation(given)
    value = policy.score.score(state, seen, given["candidates"], given["room"])
    return {"scores": scores(value, given["candidates"], _size(given))}


@answers("select")
def _select(**given):
    policy, state, seen = _situation(given)
    found = select(policy, state, seen)
    if policy.score.ordinal or found.scores is None:
        return {"keep": keep(found.keep)}
    rated = scores(found.scores, found.candidates, _size(given))
    return {"keep": keep(found.keep, rated, found.candidates)}


@answers("keep")
def _keep(**given):
    policy, _, seen = _situation(given)
    protected = policy.protect.protected(seen)
    return {"keep": keep(keep_set(given["scores"], protected, policy.budget.room(seen, protected)))}


@answers("store")
def _store(**given):
    policy, _, seen = _situation(given)
    G, _, d = given["keys"].shape
    nothing = StoredVectors.empty(G, d)
    keys, values = (nothing.append(given[name]) for name in ("keys", "values"))
    cache = LayerCache(keys, values, given["positions"])
    cache, stays = policy.precision.store(cache, seen, given["keep"])
    return {"keep": keep(stays), **_storage(cache.compact(stays))}


def _storage(cache: LayerCache) -> dict[str, Expected]:
    keys, values = cache.keys.vectors, cache.values.vectors
    return {
        "key_bits": exact(cache.keys.bits),
        "value_bits": exact(cache.values.bits),
        "keys": numbers(keys, scale=largest(keys)),
        "values": numbers(values, scale=largest(values)),
    }


@answers("run")
def _run(**given):
    policy = methods.get(given["method"], given["budget"])
    names = ("queries", "keys", "values", "confidence", "prompt", "softcap")
    blocks = tuple(int(m) for m in given["blocks"])
    stream = Stream(**{name: given[name] for name in names}, blocks=blocks)
    results = [*run_stream(policy, stream)]
    present = np.zeros((len(results), len(stream.keys), stream.tokens), dtype=bool)
    for there, result in zip(present, results, strict=True):
        np.put_along_axis(there, result.cache.positions, True, axis=-1)
    cache, size = results[-1].cache, logit_size(stream.queries, stream.keys)
    output = np.concatenate([result.output for result in results], axis=2)
    expected = {"output": numbers(output, size, largest(stream.values)), "present": exact(present)}
    if (cache.keys.bits < FULL_BITS).any():
        expected |= _storage(cache)
    columns = policy.score.columns
    return expected | {name: _column(cache.state.entries[name], size) for name in columns}
