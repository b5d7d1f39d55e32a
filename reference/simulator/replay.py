"""Replay a trace: what would policies have kept, and what would that have cost?

A replay asks the policies the same questions in the same order as a model would, by
`kvlab.reference.step.step`, and takes queries, keys and values from the trace. The trace's
own attention, over everything seen, is the yardstick; it is computed once, block by block, for
all policies.

Entries never come back, so one number per entry is enough: `Fate.left`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from kvlab.reference.attention import logits, softmax, visible, weighted_values
from kvlab.reference.checks import check_at_least
from kvlab.reference.methods import discover
from kvlab.reference.notation import Array
from kvlab.reference.policy import Policy
from kvlab.reference.processes import process_pool
from kvlab.reference.simulator.trace import Trace
from kvlab.reference.streams import Stream, block_lengths, run_stream

Result = TypeVar("Result")

STRETCH = 64
"""Generated tokens whose attention is computed together."""


@dataclass(frozen=True)
class Fate:
    """What became of every entry of one layer under one policy."""

    policy: str
    layer: int
    left: Int[Array, "G t"]
    """Index of the token after which an entry was evicted; t if it was kept to the end."""
    entries: Int[Array, " t"]
    """Entries per KV head after each token; within a block of the prompt, after its last."""
    bits: Float[Array, " t"]
    """Bits stored per KV head after each token, scales and zero points included."""
    mass: Float[Array, "G t"]
    """Share of the full cache's attention that falls on present entries, mean over query heads."""
    error: Float[Array, "G t"]
    """‖X − X'‖/‖X‖ of the attention output, over the query heads of each KV head."""
    after_eviction: Bool[Array, " t"]
    """Tokens that attended after an entry was evicted, or stored in fewer bits instead (DDKS)."""

    def present(self, token: int) -> Bool[Array, "G t"]:
        """Mark the entries that are there after a token."""
        t = self.left.shape[1]
        return (self.left > token) & (np.arange(t) <= token)

    def kept(self, token: int) -> Int[Array, "G kept"]:
        """Return the keep sets after a token; all heads hold equally many entries."""
        present = self.present(token)
        return np.nonzero(present)[1].reshape(len(present), -1)


def replay(
    trace: Trace, policies: Sequence[Policy], block_size: int | None = None, workers: int = 1
) -> Iterator[list[Fate]]:
    """Replay one layer after the other; yield the fates under each policy.

    The prompt is read in blocks of ``block_size`` tokens, or at once; ``workers`` processes share
    the layers out among them.

    Raises:
        ValueError: if a policy does not fit the trace, or ``block_size`` is below 1.
    """
    check_replay(trace, policies, block_size)
    yield from over_layers(trace, partial(replay_layer, policies=policies), block_size, workers)


def check_replay(trace: Trace, policies: Sequence[Policy], block_size: int | None) -> None:
    """Raise ValueError if a policy does not fit a trace, or ``block_size`` is below 1."""
    check_at_least(1, block_size=block_size)
    if (trace.positions != np.arange(trace.shape[3])).any():
        raise ValueError("positions must be 0, 1, 2, … to be replayed")
    for policy in policies:
        policy.check(trace.prompt)
        if policy.reposition:
            raise ValueError(f"{policy.name}: reposition needs a model's rotary embedding")
        if what := policy.score.needs.of_models:
            raise ValueError(f"{policy.name} reads {what}, which traces do not hold")


def over_layers(
    trace: Trace, task: Callable[["Layer"], Result], block_size: int | None, workers: int
) -> Iterator[Result]:
    """Yield the result of a task for each layer; a few layers are in memory at a time."""
    layers = Layer.all_of(trace, block_size)
    if workers == 1:
        yield from map(task, layers)
        return
    with process_pool(workers, initializer=discover) as submit:  # policies are of its modules
        waiting: deque[Future[Result]] = deque()
        for layer in layers:
            waiting.append(submit(task, layer))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        yield from (future.result() for future in waiting)


def replay_layer(layer: "Layer", policies: Sequence[Policy]) -> list[Fate]:
    """Replay one layer under every policy; see `replay`."""
    runs = [_Run(policy, layer) for policy in policies]
    for first, last in layer.stretches():
        attention = layer.full_attention(first, last)
        output = weighted_values(attention, layer.values[:, :last])
        for each in runs:
            each.advance(first, last, attention, output)
    return [each.fate for each in runs]


class Layer(Stream):
    """One layer of a trace, in float64."""

    @classmethod
    def of(cls, trace: Trace, index: int, block_size: int | None = None) -> "Layer":
        """Take a layer out of a trace by its index among the recorded ones."""
        t, prompt = trace.shape[3], trace.prompt
        return cls(
            trace.queries[index].astype(np.float64),
            trace.keys[index].astype(np.float64),
            trace.values[index].astype(np.float64),
            trace.confidence.astype(np.float64),
            prompt,
            block_lengths(prompt, t - prompt, block_size),
            softcap=trace.metadata.softcap,
            layer=trace.metadata.layers[index],
            layers=trace.metadata.model_layers or trace.metadata.layers[-1] + 1,
        )

    @classmethod
    def all_of(cls, trace: Trace, block_size: int | None = None) -> "Iterator[Layer]":
        """Yield every recorded layer of a trace."""
        return (cls.of(trace, index, block_size) for index in range(trace.shape[0]))

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Yield the borders of the prompt's blocks, then of `STRETCH` generated tokens each."""
        blocks = [end for end in accumulate(self.blocks) if end < self.prompt]
        yield from pairwise(
            sorted({0, *blocks, *range(self.prompt, self.tokens, STRETCH), self.tokens})
        )

    def full_attention(self, first: int, last: int) -> Float[Array, "G rho m n"]:
        """Attend from the tokens first … last − 1 to everything before and at them."""
        keys, queries = self.keys[:, :last], self.queries[:, :, first:last]
        mask = visible(np.arange(first, last), np.tile(np.arange(last), (len(keys), 1)))
        return softmax(logits(queries, keys, self.softcap), mask)


class _Run:
    """The state of one policy in one layer, and the fates of the entries so far."""

    def __init__(self, policy: Policy, layer: Layer) -> None:
        G, t, _ = layer.keys.shape
        self.steps = run_stream(policy, layer)
        self.evicts_first = policy.evict_before_attend
        self.fate = Fate(
            policy.name,
            layer.layer,
            left=np.full((G, t), t, dtype=np.int64),
            entries=np.zeros(t, dtype=np.int64),
            bits=np.zeros(t),
            mass=np.ones((G, t)),
            error=np.zeros((G, t)),
            after_eviction=np.zeros(t, dtype=bool),
        )

    def advance(self, first: int, last: int, attention: Array, output: Array) -> None:
        """Take the steps of a stretch; compare with the full cache's attention and output."""
        fate, outputs, end = self.fate, [], first
        earliest = np.zeros((last - first, 1), dtype=np.int64)
        while end < last:
            result, begin = next(self.steps), end
            seen, end = result.seen, result.seen.clock.seen
            outputs.append(result.output)
            fate.entries[begin:end] = len(result.cache)
            fate.bits[begin:end] = 8 * result.cache.nbytes / len(fate.left)
            earliest[begin - first : end - first] = end if self.evicts_first else begin
            if result.decision is not None and result.decision.scores is not None:
                fate.after_eviction[begin if self.evicts_first else end :] = True
            if result.keep is not None:
                gone = np.ones(seen.positions.shape, dtype=bool)
                np.put_along_axis(gone, result.keep, False, axis=1)
                fate.left[np.nonzero(gone)[0], seen.positions[gone]] = end - 1
        own = np.arange(first, last)[:, None] == np.arange(last)
        present = own | (fate.left[:, None, :last] >= earliest)
        mass = (attention * present[:, None]).sum(axis=-1)
        fate.mass[:, first:last] = mass.mean(axis=1)
        distance = np.linalg.norm(np.concatenate(outputs, axis=2) - output, axis=(1, 3))
        size = np.linalg.norm(output, axis=(1, 3))
        fate.error[:, first:last] = np.divide(
            distance, size, out=np.zeros_like(distance), where=size > 0
        )
