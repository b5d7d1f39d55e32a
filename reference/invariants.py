"""What the design promises of every policy, checked on random streams.

A promise is a function that returns what is wrong, or nothing. `check_promises` runs them all; the
tests run them over many more streams and every method of the registry.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from kvlab.reference.attention import attend, visible
from kvlab.reference.checks import check_at_least
from kvlab.reference.policy import Policy
from kvlab.reference.step import step
from kvlab.reference.streams import Source, Stream, random_stream, run_stream

Make = Callable[[int], Policy]
"""Builds the policy for a budget of entries."""

ROUNDING = 1e-9
"""Largest difference of one output computed in two orders in float64, for values of size 1."""


def output_is_dense_attention_the_evicted_masked(make: Make, budget: int, stream: Stream) -> str:
    """The output equals attention over everything seen, the evicted entries masked out."""
    for result in run_stream(make(budget), stream):
        clock = result.seen.clock
        first, last = clock.seen - clock.block, clock.seen
        mask = visible(clock.positions, np.tile(np.arange(last), (len(stream.keys), 1)))
        for head, positions in enumerate(result.seen.positions):
            mask[head] &= np.isin(np.arange(last), positions)
        queries = stream.queries[:, :, first:last]
        dense, _ = attend(queries, stream.keys[:, :last], stream.values[:, :last], mask)
        if (off := np.abs(dense - result.output).max()) > ROUNDING:
            return f"token {last - 1}: the output is off by {off:.2g}"
    return ""


def keep_sets_are_ascending_and_entries_keep_their_positions(
    make: Make, budget: int, stream: Stream
) -> str:
    """Keep sets ascend strictly inside the cache; evictions take positions and state along."""
    for result in run_stream(make(budget), stream):
        token, cache = result.seen.clock.seen - 1, result.cache
        if result.keep is not None:
            n = result.seen.positions.shape[1]
            inside = result.keep.min(initial=0) >= 0 and result.keep.max(initial=0) < n
            if not inside or not (np.diff(result.keep, axis=1) > 0).all():
                return f"token {token}: keep set {result.keep.tolist()}"
            survivors = np.take_along_axis(result.seen.positions, result.keep, axis=1)
            if not np.array_equal(cache.positions, survivors):
                return f"token {token}: positions are not those of the survivors"
        if not (np.diff(cache.positions, axis=1) > 0).all():
            return f"token {token}: positions {cache.positions.tolist()} do not ascend"
        for name, array in cache.state.entries.items():
            if array.shape[:2] != cache.positions.shape:
                return f"token {token}: state {name!r} of shape {array.shape}"
    return ""


def due_steps_keep_at_most_the_budget(make: Make, budget: int, stream: Stream) -> str:
    """After a step that selects, min(n, budget) entries are left."""
    for result in run_stream(make(budget), stream):
        n, left = result.seen.positions.shape[1], len(result.cache)
        if result.keep is not None and left != min(n, budget):
            return (
                f"token {result.seen.clock.seen - 1}: {left} of {n} entries kept, budget {budget}"
            )
    return ""


def a_budget_of_the_whole_text_evicts_nothing(make: Make, budget: int, stream: Stream) -> str:
    """With a budget of the whole length, every entry is kept."""
    for result in run_stream(make(stream.tokens), stream):
        if len(result.cache) != result.seen.clock.seen:
            return f"token {result.seen.clock.seen - 1}: {len(result.cache)} entries are left"
    return ""


def heads_may_be_reordered(make: Make, budget: int, stream: Stream) -> str:
    """Reordering the KV heads reorders outputs and keep sets, and nothing else."""
    order = np.roll(np.arange(len(stream.keys)), 1)
    turned = run_stream(make(budget), stream.heads(order))
    for one, other in zip(run_stream(make(budget), stream), turned, strict=True):
        token = one.seen.clock.seen - 1
        if not np.array_equal(one.cache.positions[order], other.cache.positions):
            return f"token {token}: other entries are kept"
        if np.abs(one.output[order] - other.output).max() > ROUNDING:
            return f"token {token}: other outputs"
    return ""


def failed_steps_change_nothing(make: Make, budget: int, stream: Stream) -> str:
    """A step that is refused leaves the cache as it was, ready for the next step."""
    policy = make(budget)
    *results, _ = run_stream(policy, stream)
    *_, block = stream.pieces()
    cache = results[-1].cache
    keys, positions = cache.keys.vectors.copy(), cache.positions.copy()
    with suppress(ValueError):
        step(policy, cache, replace(block, values=np.full_like(block.values, np.nan)))
        return "NaN among the values was accepted"
    if (cache.keys.vectors != keys).any() or (cache.positions != positions).any():
        return "the cache changed"
    step(policy, cache, block)
    return ""


PROMISES: Mapping[str, Callable[[Make, int, Stream], str]] = {
    function.__name__.replace("_", " "): function
    for function in (
        output_is_dense_attention_the_evicted_masked,
        keep_sets_are_ascending_and_entries_keep_their_positions,
        due_steps_keep_at_most_the_budget,
        a_budget_of_the_whole_text_evicts_nothing,
        heads_may_be_reordered,
        failed_steps_change_nothing,
    )
}
"""Promises by name; each takes a function that builds the policy, a budget and a stream."""


@dataclass(frozen=True)
class Kept:
    """A promise, and the objection to it if it was broken."""

    promise: str
    streams: int
    objection: str
    """Empty if the promise held on all streams."""


def check_promises(make: Make, budget: int = 9, streams: int = 12) -> list[Kept]:
    """Hold the policy that is built for a budget of entries to every promise, on random streams.

    Raises:
        ValueError: if ``streams`` or ``budget`` is below 1.
    """
    check_at_least(1, streams=streams, budget=budget)
    tried = [
        random_stream(Source("promises", seed), 1 + seed % 3, 1 + seed % 2, 4, seed % 15, 20, block)
        for seed, block in zip(range(streams), [None, 1, 4] * streams, strict=False)
    ]
    found = []
    for name, promise in PROMISES.items():
        objections = (objection(promise, make, budget, stream) for stream in tried)
        found.append(Kept(name, streams, next(filter(None, objections), "")))
    return found


def objection(
    promise: Callable[[Make, int, Stream], str], make: Make, budget: int, stream: Stream
) -> str:
    """Return what is wrong with a policy; an error that it raises is wrong as well."""
    try:
        return promise(make, budget, stream)
    except (ValueError, TypeError, IndexError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
