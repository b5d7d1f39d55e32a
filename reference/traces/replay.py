"""Replay a trace: what would policies have kept, and what would that have cost?

A replay asks the policies the same questions in the same order as a model would
(`kvlab.reference.policy.step`), and takes queries, keys and values from the trace. The trace's own
attention, over everything seen, is the yardstick; it is computed once, block by block, for all
policies.

Entries never come back, so one number per entry tells the whole story: `Fate.left`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from kvlab.reference.attention import logits, softmax, visible, weighted_values
from kvlab.reference.cache import State
from kvlab.reference.notation import Array
from kvlab.reference.policy import (
    Block,
    Clock,
    Full,
    Observation,
    Policy,
    empty_cache,
    select,
    step,
)
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.traces.trace import Recording

Result = TypeVar("Result")

STRETCH = 64
"""Generated tokens whose attention is computed together."""


@dataclass(frozen=True)
class Fate:
    """What became of every entry of one layer under one policy."""

    policy: str
    layer: int
    left: Int[Array, "G t"]
    """Index of the token after which an entry left; t if it stayed to the end."""
    entries: Int[Array, " t"]
    """Entries per KV head after each token; within a block of the prompt, after its last."""
    bits: Float[Array, " t"]
    """Bits stored per KV head after each token, scales and zero points included."""
    mass: Float[Array, "G t"]
    """Share of the full cache's attention that falls on present entries, mean over query heads."""
    error: Float[Array, "G t"]
    """‖X − X'‖/‖X‖ of the attention output, over the query heads of each KV head."""

    def present(self, token: int) -> Bool[Array, "G t"]:
        """Mark the entries that are there after a token."""
        t = self.left.shape[1]
        return (self.left > token) & (np.arange(t) <= token)

    def kept(self, token: int) -> Int[Array, "G kept"]:
        """Return the keep sets after a token; all heads hold equally many entries."""
        present = self.present(token)
        return np.nonzero(present)[1].reshape(len(present), -1)


def replay(
    trace: Recording,
    policies: Sequence[Policy],
    block_size: int | None = None,
    workers: int = 1,
) -> Iterator[list[Fate]]:
    """Replay one layer after the other; yield the fates under each policy.

    Args:
        trace: what was recorded.
        policies: what to ask; each keeps its own entries.
        block_size: tokens per block of the prompt; None for the whole prompt at once.
        workers: processes among which the layers are shared out.

    Raises:
        ValueError: if a policy does not fit the trace, or ``block_size`` is below 1.
    """
    check_replay(trace, policies, block_size)
    task = partial(replay_layer, policies=policies, block_size=block_size)
    yield from over_layers(trace, task, workers)


def check_replay(trace: Recording, policies: Sequence[Policy], block_size: int | None) -> None:
    """Raise ValueError if a policy does not fit a trace, or ``block_size`` is below 1."""
    if block_size is not None and block_size < 1:
        raise ValueError(f"block_size = {block_size} must be at least 1")
    if (trace.positions != np.arange(trace.shape[3])).any():
        raise ValueError("positions must be 0, 1, 2, … to be replayed")
    for policy in policies:
        policy.check(trace.prompt)
        if policy.reposition:
            raise ValueError(f"{policy.name}: reposition needs a model's rotary embedding")


def over_layers(
    trace: Recording, task: Callable[["Layer"], Result], workers: int
) -> Iterator[Result]:
    """Yield what a task finds in each layer; a few layers are in memory at a time."""
    layers = (Layer.of(trace, number) for number in range(trace.shape[0]))
    if workers == 1:
        yield from map(task, layers)
        return
    with ProcessPoolExecutor(workers) as pool:
        waiting: deque[Future[Result]] = deque()
        for layer in layers:
            waiting.append(pool.submit(task, layer))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        yield from (future.result() for future in waiting)


def replay_layer(
    layer: "Layer", policies: Sequence[Policy], block_size: int | None = None
) -> list[Fate]:
    """Replay one layer under every policy; see `replay`."""
    runs = [start(policy, layer) for policy in policies]
    for first, last in stretches(layer.prompt, layer.keys.shape[1], block_size):
        yardstick = layer.full_attention(first, last)
        for run in runs:
            run.advance(first, last, yardstick)
    return [run.fate() for run in runs]


def stretches(prompt: int, t: int, block_size: int | None) -> Iterator[tuple[int, int]]:
    """Yield the borders of the prompt's blocks, then of stretches of generated tokens."""
    size = block_size or max(1, prompt)
    yield from ((first, min(first + size, prompt)) for first in range(0, prompt, size))
    yield from ((first, min(first + STRETCH, t)) for first in range(prompt, t, STRETCH))


@dataclass(frozen=True)
class FullAttention:
    """What the queries of a stretch see with the full cache."""

    logits: Float[Array, "G rho m n"]
    """Of all n entries up to the stretch's last, later ones included."""
    attention: Float[Array, "G rho m n"]
    output: Float[Array, "G rho m d"]


@dataclass(frozen=True)
class Layer:
    """One layer of a trace, in float64."""

    number: int
    prompt: int
    queries: Float[Array, "G rho t d"]
    keys: Float[Array, "G t d"]
    values: Float[Array, "G t d"]
    confidence: Float[Array, " t"]
    softcap: float | None

    @classmethod
    def of(cls, trace: Recording, number: int) -> "Layer":
        """Take a layer out of a trace."""
        queries, keys, values = trace.vectors(number)
        return cls(
            trace.metadata.layers[number],
            trace.prompt,
            queries.astype(np.float64),
            keys.astype(np.float64),
            values.astype(np.float64),
            trace.confidence.astype(np.float64),
            trace.metadata.softcap,
        )

    def full_attention(self, first: int, last: int) -> FullAttention:
        """Attend from the tokens first … last − 1 to everything before and at them."""
        raw = logits(self.queries[:, :, first:last], self.keys[:, :last], self.softcap)
        seen = np.arange(last) <= np.arange(first, last)[:, None]
        attention = softmax(raw, np.broadcast_to(seen, raw.shape))
        return FullAttention(raw, attention, weighted_values(attention, self.values[:, :last]))


class Run:
    """One policy on its way through one layer."""

    def __init__(self, policy: Policy, layer: Layer) -> None:
        G, _, t, _ = layer.queries.shape
        self.policy, self.layer = policy, layer
        self.left = np.full((G, t), t, dtype=np.int64)
        self.entries = np.zeros(t, dtype=np.int64)
        self.bits = np.zeros(t)
        self.mass, self.error = np.ones((G, t)), np.zeros((G, t))

    def fate(self) -> Fate:
        """Return what became of the entries."""
        return Fate(
            self.policy.name,
            self.layer.number,
            self.left,
            self.entries,
            self.bits,
            self.mass,
            self.error,
        )

    def advance(self, first: int, last: int, full: FullAttention) -> None:
        """Decide about a stretch, block by block, and compare it with the full cache."""
        present = np.zeros((len(self.left), last - first, last), dtype=bool)
        in_prompt = last <= self.layer.prompt
        borders = [(first, last)] if in_prompt else [(i, i + 1) for i in range(first, last)]
        outputs = []
        for begin, end in borders:
            clock = Clock(end, end - begin, self.layer.prompt)
            positions, output = self.step(clock, full, first)
            outputs.append(output)
            present[np.arange(len(positions))[:, None], begin - first, positions] = True
            present[:, begin - first : end - first] = present[:, begin - first, None]
            rows = np.arange(begin, end)
            present[:, rows - first, rows] = True  # itself, also if it left before it attended
            self.entries[begin:end], self.bits[begin:end] = self.stored()
        kept = full.attention * present[:, None]
        mass = kept.sum(axis=-1, keepdims=True)
        self.mass[:, first:last] = mass[..., 0].mean(axis=1)
        if outputs[0] is None:
            values = self.layer.values[:, :last]
            output = np.divide(
                weighted_values(kept, values), mass, out=np.zeros_like(full.output), where=mass > 0
            )
        else:
            output = np.concatenate(outputs, axis=2)
        distance = np.linalg.norm(output - full.output, axis=(1, 3))
        size = np.linalg.norm(full.output, axis=(1, 3))
        self.error[:, first:last] = np.divide(
            distance, size, out=np.zeros_like(distance), where=size > 0
        )

    def note_evictions(
        self, before: Int[Array, "G n"], keep: Int[Array, "G kept"], token: int
    ) -> None:
        """Write down who left after a token."""
        gone = np.ones(before.shape, dtype=bool)
        np.put_along_axis(gone, keep, False, axis=1)
        head, slot = np.nonzero(gone)
        self.left[head, before[head, slot]] = token

    def step(
        self, clock: Clock, full: FullAttention, first: int
    ) -> tuple[Int[Array, "G n"], Float[Array, "G rho m d"] | None]:
        """Take one block; return the positions that it attended to, and its output.

        None: the output is that of full attention to these positions alone.
        """
        raise NotImplementedError

    def stored(self) -> tuple[int, float]:
        """Entries and bits per KV head."""
        raise NotImplementedError


class StepRun(Run):
    """Any policy, by the step that models use."""

    def __init__(self, policy: Policy, layer: Layer) -> None:
        super().__init__(policy, layer)
        self.cache = empty_cache(policy, len(layer.keys), layer.keys.shape[2])

    def step(
        self, clock: Clock, full: FullAttention, first: int
    ) -> tuple[Int[Array, "G n"], Float[Array, "G rho m d"]]:
        """Take one block."""
        layer, rows = self.layer, slice(clock.seen - clock.block, clock.seen)
        block = Block(
            clock,
            layer.number,
            layer.queries[:, :, rows],
            layer.keys[:, rows],
            layer.values[:, rows],
            layer.confidence[: clock.seen],
            None,
            layer.softcap,
        )
        result = step(self.policy, self.cache, block)
        self.cache = result.cache
        if result.keep is not None:
            self.note_evictions(result.seen.positions, result.keep, clock.seen - 1)
        if self.policy.evict_before_attend and result.keep is not None:
            return np.take_along_axis(result.seen.positions, result.keep, axis=1), result.output
        return result.seen.positions, result.output

    def stored(self) -> tuple[int, float]:
        """Entries and bits per KV head."""
        return len(self.cache), 8 * self.cache.nbytes / len(self.cache.positions)


class IndexedObservation(Observation):
    """An observation that fetches keys and values only for scores that read them."""

    source: Layer

    def __init__(
        self,
        layer: Layer,
        clock: Clock,
        attention: Float[Array, "G rho m n"],
        positions: Int[Array, "G n"],
    ) -> None:
        facts = {
            "clock": clock,
            "layer": layer.number,
            "queries": layer.queries[:, :, clock.positions],
            "attention": attention,
            "positions": positions,
            "confidence": layer.confidence[: clock.seen],
            "softcap": layer.softcap,
            "source": layer,
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    @cached_property
    def keys(self) -> Float[Array, "G n d"]:  # type: ignore[override]
        """Keys of the present entries."""
        return self.source.keys[self._heads, self.positions]

    @cached_property
    def values(self) -> Float[Array, "G n d"]:  # type: ignore[override]
        """Values of the present entries."""
        return self.source.values[self._heads, self.positions]

    @property
    def _heads(self) -> Int[Array, "G 1"]:
        return np.arange(len(self.positions))[:, None]

    @cached_property
    def bits(self) -> Int[Array, "G n"]:  # type: ignore[override]
        """All are stored at 16 bits."""
        return np.full(self.positions.shape, FULL_BITS)


class IndexRun(Run):
    """A policy that stores everything at 16 bits: it only has to know which entries are there.

    Logits come from the full attention and values from the trace, so that nothing is copied but
    the positions and what the score remembers.
    """

    def __init__(self, policy: Policy, layer: Layer) -> None:
        super().__init__(policy, layer)
        columns, G = policy.score.columns, len(layer.keys)
        self.positions = np.zeros((G, 0), dtype=np.int64)
        self.state = State({name: column.rows(G, 0) for name, column in columns.items()})

    def step(self, clock: Clock, full: FullAttention, first: int) -> tuple[Int[Array, "G n"], None]:
        """Take one block."""
        self._append(clock)
        positions = self.positions
        attention = self._attention(clock, full, first)
        seen = IndexedObservation(self.layer, clock, attention, positions)
        self.state = self.policy.score.observe(self.state, seen)
        if self.policy.schedule.due(clock):
            _, keep = select(self.policy, self.state, seen)
            if keep.shape[1] < positions.shape[1]:
                self.note_evictions(positions, keep, clock.seen - 1)
                self._compact(keep)
        return positions, None

    def stored(self) -> tuple[int, float]:
        """Entries and bits per KV head."""
        n = self.positions.shape[1]
        return n, n * 2 * self.layer.keys.shape[2] * FULL_BITS

    def _append(self, clock: Clock) -> None:
        G, m, columns = len(self.positions), clock.block, self.policy.score.columns
        new = np.broadcast_to(clock.positions, (G, m))
        self.positions = np.concatenate([self.positions, new], axis=1)
        grown = {
            name: np.concatenate([x, columns[name].rows(G, m)], axis=1)
            for name, x in self.state.entries.items()
        }
        self.state = replace(self.state, entries=grown)

    def _attention(
        self, clock: Clock, full: FullAttention, first: int
    ) -> Float[Array, "G rho m n"]:
        """Attention of a block to the present entries alone."""
        rows = slice(clock.seen - clock.block - first, clock.seen - first)
        raw = full.logits[:, :, rows]
        if self.positions.shape[1] < raw.shape[-1]:
            raw = np.take_along_axis(raw, self.positions[:, None, None], axis=-1)
        if clock.block == 1:
            return softmax(raw)
        mask = visible(clock.positions, self.positions)
        return softmax(raw, np.broadcast_to(mask, raw.shape))

    def _compact(self, keep: Int[Array, "G kept"]) -> None:
        self.positions = np.take_along_axis(self.positions, keep, axis=1)
        kept = {name: np.take_along_axis(x, keep, axis=1) for name, x in self.state.entries.items()}
        self.state = replace(self.state, entries=kept)


def start(policy: Policy, layer: Layer) -> Run:
    """Return the cheapest run that does what the policy says."""
    plain = isinstance(policy.precision, Full) and not policy.evict_before_attend
    return IndexRun(policy, layer) if plain else StepRun(policy, layer)
