"""The step of one layer: append, attend, observe, encode and, if due, select, store and compact.

`look` does all that comes before an eviction, `apply` the rest, for any keep set. `apply_together`
ends the step of all layers where these keep the same entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvlab.reference.attention import attend, visible, weighted_values
from kvlab.reference.cache import LayerCache, State
from kvlab.reference.notation import Array, Float, KeepSet, Marks, NewVectors, Queries, Scores
from kvlab.reference.observation import Clock, Observation, Rotate
from kvlab.reference.policy import Policy, Score
from kvlab.reference.selection import keep_set


@dataclass(frozen=True)
class Block:
    """Queries, keys and values that the model hands to one layer for one block of tokens."""

    clock: Clock
    layer: int
    queries: Queries
    keys: NewVectors
    values: NewVectors
    confidence: Float[Array, " t"]
    rotate: Rotate | None = None
    """The layer's rotary embedding, for ``reposition`` and for scores that read it."""
    softcap: float | None = None
    """Bound of the model's attention logits, if it has one."""
    hidden_states: Float[Array, "m D"] | None = None
    """What the model projects to queries, keys and values, for scores that read it."""
    layers: int = 1
    """Layers of the model."""
    projection: Float[Array, "G rho d D"] | None = None
    """The layer's output projection, cut by query heads, for scores that read it."""


@dataclass(frozen=True)
class Decision:
    """What is kept, and why."""

    candidates: Marks
    """Entries that may be evicted."""
    room: int
    """How many candidates are kept."""
    scores: Scores | None
    """None if nothing has to be evicted."""
    keep: KeepSet


@dataclass(frozen=True)
class StepResult:
    """The results of one step of one layer, or of `look` alone: then nothing is evicted yet."""

    output: Queries
    cache: LayerCache
    """The cache with the block's entries, and what the score remembers of it."""
    seen: Observation
    decision: Decision | None
    """The policy's own decision; None if the step was not due."""
    keep: KeepSet | None = None
    """Indices of the kept entries of ``seen``; None if the step was not due."""


def empty_cache(policy: Policy, kv_heads: int, head_dim: int) -> LayerCache:
    """Return the empty cache of one layer for a policy."""
    return LayerCache.empty(kv_heads, head_dim, policy.score.columns)


def step(policy: Policy, cache: LayerCache, block: Block) -> StepResult:
    """Append a block, attend, observe, encode and, if due, select, store and compact.

    Nothing is changed in place: if the step fails, ``cache`` is as it was.

    Raises:
        ValueError: on wrong shapes, on NaN or infinity, if protected entries exceed the budget, if
            the block lacks what the score reads of the model, and if all layers of a model
            decide together.
    """
    if policy.score.joins_layers and block.layers > 1:
        raise ValueError(
            f"{policy.name} decides in all {block.layers} layers together: a layer cannot be "
            "stepped alone"
        )
    looked = look(policy, cache, block)
    return apply(policy, looked, looked.decision.keep) if looked.decision else looked


def look(policy: Policy, cache: LayerCache, block: Block) -> StepResult:
    """Append a block, attend, observe, encode and, if due, select."""
    _check_block(policy, cache, block)
    cache = cache.append(block.keys, block.values, block.clock.positions, policy.score.columns)
    output, seen = _observe_attention(policy, cache, block)
    state = policy.score.observe(cache.state, seen)
    check_state(policy.score, state, cache.positions.shape)
    cache = policy.precision.encode(replace(cache, state=state))
    due = policy.schedule.due(block.clock)
    return StepResult(output, cache, seen, select(policy, state, seen) if due else None)


def apply(policy: Policy, looked: StepResult, keep: KeepSet) -> StepResult:
    """Store and compact: keep the entries of ``keep``, and those that the precision adds."""
    output, seen = looked.output, looked.seen
    cache, keep = policy.precision.store(looked.cache, seen, keep)
    if policy.evict_before_attend:
        output = attend_survivors(seen, keep)
    return StepResult(output, cache.compact(keep), seen, looked.decision, keep)


def apply_together(policy: Policy, looked: Sequence[StepResult]) -> list[StepResult]:
    """End a step of all layers, which keep the same entries: by the mean of the layers' scores."""
    joint = looked[0].decision
    if joint is None:
        return list(looked)
    if joint.scores is not None:
        decisions = [layer.decision for layer in looked if layer.decision is not None]
        rated = [each.scores for each in decisions if each.scores is not None]
        scores = np.stack(rated).mean(axis=0)
        keep = keep_set(scores, ~joint.candidates, joint.room)
        joint = replace(joint, scores=scores, keep=keep)
    return [apply(policy, replace(layer, decision=joint), joint.keep) for layer in looked]


def _observe_attention(
    policy: Policy, cache: LayerCache, block: Block
) -> tuple[Queries, Observation]:
    keys, values, queries = cache.keys.vectors, cache.values.vectors, block.queries
    clock, n = block.clock, len(cache)
    query_positions = clock.positions
    if policy.reposition and block.rotate is not None:
        keys = block.rotate(keys, np.arange(n) - cache.positions)
        queries = block.rotate(queries, np.arange(n - clock.block, n) - query_positions)
    # The newest token reads everything: only a block of several needs a mask.
    mask = visible(query_positions, cache.positions) if clock.block > 1 else None
    output, attention = attend(queries, keys, values, mask, block.softcap)  # [CAOTE Eq. 5]
    seen = Observation(
        clock=clock,
        layer=block.layer,
        queries=queries,
        attention=attention,
        keys=keys,
        values=values,
        positions=cache.positions,
        bits=cache.keys.bits,
        confidence=block.confidence,
        softcap=block.softcap,
        hidden_states=block.hidden_states if policy.score.needs.hidden_states else None,
        layers=block.layers,
        rotary=block.rotate if policy.score.needs.rotary else None,
        projection=block.projection if policy.score.needs.projection else None,
    )
    return output, seen


def select(policy: Policy, state: State, seen: Observation) -> Decision:
    """Decide what is kept: the protected entries and the best of the rest."""
    protected = policy.protect.protected(seen)
    candidates = ~protected
    open_entries = int(candidates.sum(axis=-1).max())
    room = policy.budget.room(seen, protected)
    if room >= open_entries:
        everything = np.tile(np.arange(protected.shape[1]), (len(protected), 1))
        return Decision(candidates, open_entries, None, everything)
    scores = policy.score.score(state, seen, candidates, room)
    check_scores(policy.score, scores, candidates, seen.layer)
    keep = keep_set(scores, protected, room)  # [CAOTE Eq. 6]
    return Decision(candidates, room, scores, keep)


def attend_survivors(seen: Observation, keep: KeepSet) -> Queries:
    """Attention output over the kept entries, renormalised; a query always keeps its own key."""
    kept = np.zeros(seen.positions.shape, dtype=bool)
    np.put_along_axis(kept, keep, True, axis=-1)
    own = seen.positions[:, None, None, :] == seen.query_positions[None, None, :, None]
    survivors = seen.attention * (kept[:, None, None, :] | own)
    weights = survivors / survivors.sum(axis=-1, keepdims=True)
    return weighted_values(weights, seen.values)  # [CAOTE 7]


def check_state(score: Score, state: State | None, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a score returned each of its columns, with a row for every entry."""
    name, declared = type(score).__name__, sorted(score.columns)
    if not isinstance(state, State):
        raise ValueError(f"{name}.observe returned {state!r}: it must return a State")
    if sorted(state.entries) != declared:
        raise ValueError(
            f"{name}.observe wrote the columns {sorted(state.entries)}, and {name}.columns "
            f"declares {declared}"
        )
    for column, numbers in state.entries.items():
        if numbers.shape[:2] != shape:
            raise ValueError(
                f"{name}.observe gave column {column!r} the shape {numbers.shape}: it must begin "
                f"with {shape}, KV heads and entries"
            )


def check_scores(score: Score, scores: Array, candidates: Marks, layer: int) -> None:
    """Raise ValueError unless a score gave a number for every entry, and no candidate NaN."""
    name = type(score).__name__
    if np.shape(scores) != candidates.shape:
        raise ValueError(
            f"{name}.score gave the shape {np.shape(scores)}: it must be {candidates.shape}, "
            "KV heads and entries"
        )
    if np.isnan(scores[candidates]).any():
        raise ValueError(f"scores must not be NaN: {name} gave one in layer {layer}")


def _check_block(policy: Policy, cache: LayerCache, block: Block) -> None:
    G, _, m, d = block.queries.shape
    if block.keys.shape != (G, m, d) or block.values.shape != (G, m, d):
        raise ValueError(
            f"keys {block.keys.shape} and values {block.values.shape} must have the shape "
            f"{(G, m, d)} that queries {block.queries.shape} ask for"
        )
    if cache.positions.shape[0] != G:
        raise ValueError(f"the block has {G} KV heads, the cache {cache.positions.shape[0]}")
    if m != block.clock.block or m < 1 or block.clock.seen < m:
        raise ValueError(f"{block.clock} does not fit a block of {m} tokens")
    if block.clock.seen - m < block.clock.prompt < block.clock.seen:
        raise ValueError("a block must not hold both prompt and generated tokens")
    policy.check_block(block)
    given = {name: getattr(block, name) for name in ("queries", "keys", "values")}
    if policy.score.needs.hidden_states and block.hidden_states is not None:
        given["hidden_states"] = block.hidden_states
        if len(block.hidden_states) != m:
            raise ValueError(f"hidden_states must have a row for each of the {m} tokens")
    for name, numbers in given.items():
        if not np.isfinite(numbers).all():
            raise ValueError(f"{name} must be finite, got NaN or infinity")
