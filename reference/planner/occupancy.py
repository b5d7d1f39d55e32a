"""How many entries a policy holds, and at how many bits, told by its rules alone.

Schedules, protection and budgets are asked as in a model, with positions but without queries, keys
or values. Who is kept does not matter for how many; only DesireKV's doubtful tokens depend on data:
here no token is doubtful.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from kvlab.reference.methods.ddks import Demote
from kvlab.reference.methods.desirekv import BitsBySensitivity
from kvlab.reference.methods.kivi import KeysPerChannelValuesPerToken
from kvlab.reference.notation import Array
from kvlab.reference.policy import (
    Clock,
    Full,
    Observation,
    Policy,
    Precision,
    check_at_least,
)
from kvlab.reference.quantization import FULL_BITS

SCALE_AND_ZERO = 32
"""Bits that a group of quantised elements takes besides its codes."""


@dataclass(frozen=True)
class Occupancy:
    """Entries of one KV head over a generation; all heads and layers hold equally many."""

    prompt: int
    attended: Int[Array, " t"]
    """Entries that each token's query found, its own included."""
    entries: Int[Array, " t"]
    """Entries after each token; within a block of the prompt, after its last."""
    ranked: Bool[Array, " t"]
    """Whether scores decided after this token, because not all candidates could stay."""
    moved: Bool[Array, " t"]
    """Whether more than one entry left, so that the survivors had to be moved together."""
    bits: Float[Array, " t"]
    """Mean bits per element of the entries after each token, scales and zero points included."""
    quantised: Int[Array, " t"]
    """Entries whose keys or values lost bits after this token."""

    @property
    def peak(self) -> int:
        """The most entries that there ever were."""
        return int(self.attended.max())

    def elements(self, head_dim: int) -> Float[Array, " t"]:
        """Bits of keys and values per KV head after each token."""
        return self.entries * self.bits * 2 * head_dim


def occupancy(
    policy: Policy,
    prompt: int,
    generated: int,
    block_size: int | None = None,
    head_dim: int = 128,
) -> Occupancy:
    """Count the entries under a policy.

    Args:
        policy: whose rules to follow.
        prompt: tokens given.
        generated: tokens written and read.
        block_size: tokens per block of the prompt; None for the whole prompt at once.
        head_dim: channels d of keys and values.

    Raises:
        ValueError: if a count is negative, ``block_size`` or ``head_dim`` is below 1, or the policy
            cannot work with such a prompt.
        TypeError: if the policy stores entries in a way that is not known here.
    """
    check_at_least(0, prompt=prompt, generated=generated)
    check_at_least(1, block_size=1 if block_size is None else block_size, head_dim=head_dim)
    check_at_least(1, tokens=prompt + generated)
    policy.check(prompt)
    t = prompt + generated
    found = Occupancy(
        prompt,
        attended=np.zeros(t, dtype=np.int64),
        entries=np.zeros(t, dtype=np.int64),
        ranked=np.zeros(t, dtype=bool),
        moved=np.zeros(t, dtype=bool),
        bits=np.full(t, float(FULL_BITS)),
        quantised=np.zeros(t, dtype=np.int64),
    )
    held, count = Held.nothing(), 0
    for first, last in _blocks(prompt, t, block_size):
        clock = Clock(last, last - first, prompt)
        count += clock.block
        found.attended[first:last] = count
        if policy.schedule.due(clock):
            before = held.append(np.arange(last - (count - len(held)), last))
            held, found.ranked[last - 1] = decide(policy, clock, before, head_dim)
            found.moved[last - 1] = len(held) < count - 1
            found.quantised[last - 1] = before.lowered_to(held)
            count = len(held)
        found.entries[first:last] = count
        found.bits[first:last] = held.mean_bits(count)
    return found


def _blocks(prompt: int, t: int, block_size: int | None) -> Iterator[tuple[int, int]]:
    size = block_size or max(1, prompt)
    yield from ((first, min(first + size, prompt)) for first in range(0, prompt, size))
    yield from ((token, token + 1) for token in range(prompt, t))


@dataclass(frozen=True)
class Held:
    """The entries of one KV head: where they come from, and the bits of their keys and values."""

    positions: Int[Array, " n"]
    keys: Float[Array, " n"]
    values: Float[Array, " n"]

    @classmethod
    def nothing(cls) -> "Held":
        """No entries."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))

    def __len__(self) -> int:
        return len(self.positions)

    def mean_bits(self, count: int) -> float:
        """Bits per element of keys and values; of ``count`` entries, those not here are wide."""
        if not count:
            return float(FULL_BITS)
        wide = FULL_BITS * (count - len(self))
        return float(((self.keys.sum() + self.values.sum()) / 2 + wide) / count)

    def lowered_to(self, after: "Held") -> int:
        """Count the entries of ``after`` that have fewer bits than here."""
        here = np.isin(self.positions, after.positions)
        lower = (after.keys < self.keys[here]) | (after.values < self.values[here])
        return int(lower.sum())

    def append(self, positions: Int[Array, " m"]) -> "Held":
        """Add tokens at 16 bits."""
        wide = np.full(len(positions), float(FULL_BITS))
        return Held(
            np.concatenate([self.positions, positions]),
            np.concatenate([self.keys, wide]),
            np.concatenate([self.values, wide]),
        )

    def take(self, keep: Int[Array, " kept"]) -> "Held":
        """Keep these alone."""
        return Held(self.positions[keep], self.keys[keep], self.values[keep])


def decide(policy: Policy, clock: Clock, held: Held, head_dim: int) -> tuple[Held, bool]:
    """Let a due step select and store, and say whether not all could stay; the oldest go."""
    seen = without_data(clock, held, head_dim)
    safe = policy.protect.safe(seen)[0]
    room = policy.budget.room(seen, safe[None])
    candidates = np.nonzero(~safe)[0]
    stay = candidates[max(0, len(candidates) - room) :]
    keep = np.sort(np.concatenate([np.nonzero(safe)[0], stay]))
    return store(policy.precision, held, seen, ~safe, keep), len(stay) < len(candidates)


def without_data(clock: Clock, held: Held, head_dim: int) -> Observation:
    """Return an observation whose positions and bits alone are true."""
    n = len(held)
    nothing = np.broadcast_to(0.0, (1, n, head_dim))
    return Observation(
        clock=clock,
        layer=0,
        queries=np.broadcast_to(0.0, (1, 1, clock.block, head_dim)),
        attention=np.broadcast_to(0.0, (1, 1, clock.block, n)),
        keys=nothing,
        values=nothing,
        positions=held.positions[None],
        bits=held.keys[None].astype(np.int64),
        confidence=np.full(clock.seen, np.nan),
    )


@singledispatch
def store(
    precision: Precision,
    held: Held,
    seen: Observation,
    candidates: Bool[Array, " n"],
    keep: Int[Array, " kept"],
) -> Held:
    """Lower bits as a precision says, and drop who is not kept.

    Raises:
        TypeError: for a precision that is not known here; register it with ``store.register``.
    """
    raise TypeError(f"{type(precision).__name__} is not known to kvlab.reference.planner")


@store.register
def _(precision: Full, held: Held, seen: Any, candidates: Any, keep: Any) -> Held:
    return held.take(keep)


@store.register
def _(
    precision: KeysPerChannelValuesPerToken, held: Held, seen: Any, candidates: Any, keep: Any
) -> Held:
    index, n, residual = np.arange(len(held)), len(held), precision.residual
    key_bits = precision.key_bits + SCALE_AND_ZERO / precision.group
    value_bits = per_token(precision.value_bits, precision.group, seen)
    return replace(
        held,
        keys=np.where(index < n // residual * residual, key_bits, held.keys),
        values=np.where(index < n - residual, value_bits, held.values),
    )


@store.register
def _(precision: Demote, held: Held, seen: Any, candidates: Any, keep: Any) -> Held:
    demoted = np.ones(len(held), dtype=bool)
    demoted[keep] = False
    bits = per_token(precision.bits, precision.group, seen)
    return replace(
        held,
        keys=np.where(demoted, np.minimum(bits, held.keys), held.keys),
        values=np.where(demoted, np.minimum(bits, held.values), held.values),
    )


@store.register
def _(precision: BitsBySensitivity, held: Held, seen: Any, candidates: Any, keep: Any) -> Held:
    decided = keep[precision.window.members(seen)[0][keep]]
    sensitive = decided[len(decided) - round(len(decided) * (1 - precision.quantile)) :]
    bits = np.full(len(held), float(FULL_BITS))
    bits[decided] = per_token(precision.low_bits, precision.group, seen)
    bits[sensitive] = per_token(precision.high_bits, precision.group, seen)
    value_bits = bits.copy()
    if precision.value_bits is not None:
        value_bits[decided] = per_token(precision.value_bits, precision.group, seen)
    lowered = replace(
        held, keys=np.minimum(held.keys, bits), values=np.minimum(held.values, value_bits)
    )
    return lowered.take(keep)


def per_token(bits: int, group: int, seen: Observation) -> float:
    """Bits per element of a vector that is quantised in groups of its channels."""
    if bits == FULL_BITS:
        return bits
    head_dim = seen.keys.shape[-1]
    return bits + SCALE_AND_ZERO * ceil(head_dim / group) / head_dim
