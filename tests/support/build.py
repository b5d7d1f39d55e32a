"""Builders of small observations and streams, shared by the tests."""

from dataclasses import dataclass, replace

import numpy as np

from kvlab.reference.cache import LayerCache, State
from kvlab.reference.observation import Clock, Observation
from kvlab.reference.policy import Policy, Score
from kvlab.reference.step import select
from kvlab.reference.streams import Stream, block_lengths, rotary, run_stream

Array = np.ndarray


def observation(
    attention, *, keys=None, values=None, queries=None, seen=None, prompt=0, layer=0, **given
) -> Observation:
    """Build what a block saw from its attention ``[m, n]`` or ``[G, rho, m, n]``."""
    attention = np.asarray(attention, dtype=float)
    if attention.ndim == 2:
        attention = attention[None, None]
    G, rho, m, n = attention.shape
    seen = n if seen is None else seen

    sizes = [(keys, G * n), (values, G * n), (queries, G * rho * m)]
    d = next((np.size(vectors) // count for vectors, count in sizes if vectors is not None), 2)

    def vectors(given_vectors, *shape: int) -> Array:
        if given_vectors is None:
            return np.zeros((*shape, d))
        return np.asarray(given_vectors, dtype=float).reshape(*shape, -1)

    return Observation(
        clock=Clock(seen=seen, block=m, prompt=prompt),
        layer=layer,
        queries=vectors(queries, G, rho, m),
        attention=attention,
        keys=vectors(keys, G, n),
        values=vectors(values, G, n),
        positions=np.asarray(given.get("positions", np.tile(np.arange(n), (G, 1)))),
        bits=np.asarray(given.get("bits", np.full((G, n), 16))),
        confidence=np.asarray(given.get("confidence", np.full(seen, np.nan))),
    )


def observe_rows(score: Score, rows, prompt: int = 0, **given) -> tuple[State, Observation]:
    """Feed one token after the other, each with its row of attention, to a score of one head."""
    cache = LayerCache.empty(1, 2, score.columns)
    seen = None
    for i, row in enumerate(rows):
        new = np.zeros((1, 1, 2))
        cache = cache.append(new, new, np.array([i]), score.columns)
        seen = observation([row], seen=i + 1, prompt=prompt, **given)
        cache = replace(cache, state=score.observe(cache.state, seen))
    assert seen is not None
    return cache.state, seen


def asked_once(policy: Policy, weights, keys=None, **given) -> tuple[State, Observation]:
    """A last query of 1, to which keys ln w give the attention w, after a score has observed it."""
    n = len(weights)
    keys = np.log(weights if keys is None else keys)
    seen = observation([weights], keys=keys, queries=[1.0], values=np.zeros(n), **given)
    return policy.score.observe(State(), seen), seen


def kept(policy: Policy, state: State, seen: Observation) -> list[int]:
    """Indices that stay in the first head."""
    return select(policy, state, seen).keep[0].tolist()


@dataclass(frozen=True, eq=False)
class Given(Score):
    """Draws that a test states."""

    numbers: Array

    def drawn(self, seen):
        return {"noise": self.numbers}

    def score(self, state, seen, candidates, room):
        return self.numbers


def stream(rng: np.random.Generator, G: int, rho: int, d: int, tokens: int):
    """Random queries ``[G, rho, t, d]``, keys and values ``[G, t, d]``."""
    return (
        2 * rng.normal(size=(G, rho, tokens, d)),
        rng.normal(size=(G, tokens, d)),
        rng.normal(size=(G, tokens, d)),
    )


def looking(weights, prompt: int = 0) -> Observation:
    """Observe queries that pay the entries in proportion to weights ``[G, rho, m, n]``."""
    weights = np.asarray(weights, dtype=float)
    n = weights.shape[-1]
    keys = np.tile(np.sqrt(n) * np.eye(n), (len(weights), 1, 1))
    attention = weights / weights.sum(axis=-1, keepdims=True)
    given = {"queries": np.log(weights), "keys": keys, "values": np.eye(n)[None] + 0 * keys}
    return observation(attention, prompt=prompt, **given)


def nothing_yet(score: Score, seen: Observation) -> State:
    """Return a score's state in which every entry has its start value."""
    heads, entries = seen.positions.shape
    return State({name: column.rows(heads, entries) for name, column in score.columns.items()})


def paying(weights) -> tuple[Array, Array, Array]:
    """Queries, keys and values of one head: token i pays the entries j that are present in
    proportion to weights[i][j], and the value of entry j is 1 in channel j alone.
    """
    t = len(weights)
    rows = np.array([[*row, *[1.0] * (t - len(row))] for row in weights], dtype=float)
    channels = np.eye(t)[None]
    return np.log(rows)[None, None], np.sqrt(t) * channels, channels


def run(policy: Policy, queries, keys, values, prompt: int, block: int | None = None, layer=0):
    """Run one layer over a stream: prefill in blocks, then token by token; return all results."""
    t = keys.shape[1]
    confidence = np.where(np.arange(t) < prompt, np.nan, np.random.default_rng(0).random(t))
    blocks = block_lengths(prompt, t - prompt, block)
    given = Stream(queries, keys, values, confidence, prompt, blocks, layer=layer, rotate=rotary)
    return list(run_stream(policy, given))
