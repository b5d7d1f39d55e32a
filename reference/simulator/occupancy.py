"""How many entries a policy holds in every layer, and at how many bits, from its rules alone.

Schedules, protection and budgets are called as in a model, with positions but without queries, keys
or values. The number of kept entries does not depend on which entries are kept. Only the number of
DesireKV's doubtful tokens depends on data: here no token is doubtful.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Real

from kvlab.reference.methods.ddks import Demote
from kvlab.reference.methods.desirekv import BitsBySensitivity, decision_window
from kvlab.reference.methods.kivi import KeysPerChannelValuesPerToken
from kvlab.reference.notation import Array
from kvlab.reference.observation import Clock, Observation
from kvlab.reference.policy import Full, Policy, Precision
from kvlab.reference.precisions import OnArrival
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.slots import Rows, grown, shrunk
from kvlab.reference.streams import block_lengths


@dataclass(frozen=True)
class Occupancy:
    """Entries of one KV head over a generation; all heads of a layer hold equally many."""

    attended: Real[Array, " t"]
    """Entries that each token's query found, its own included."""
    entries: Real[Array, " t"]
    """Entries after each token; for the tokens of a block of the prompt, after the block's last."""
    ranked: Bool[Array, " t"]
    """Whether scores decided after this token, because not all candidates could be kept."""
    bits: Float[Array, " t"]
    """Mean bits per element of the entries after each token, scales and zero points included."""
    quantised: Real[Array, " t"]
    """Entries whose keys or values lost bits after this token."""
    slots: Real[Array, " t"]
    """Slots that are allocated after each token, as `kvlab.reference.slots` says."""
    stored: Real[Array, " t"]
    """Bits that all vectors have allocated after each token, per channel of a head."""
    numbered: Real[Array, " t"]
    """Rows of tables after each token whose slots are written down, because they are no range."""

    @property
    def peak(self) -> float:
        """The largest number of entries at any time, those of a block that arrives included."""
        return self.attended.max().item()

    def elements(self, head_dim: int) -> Float[Array, " t"]:
        """Bits of keys and values per KV head after each token."""
        return self.entries * self.bits * 2 * head_dim


SCALE_AND_ZERO = 32
"""Bits that a group of quantised elements takes besides its codes."""


@dataclass(frozen=True)
class StoredBits:
    """The entries of one KV head: where they come from, and the bits of their keys and values."""

    positions: Int[Array, " n"]
    keys: Float[Array, " n"]
    """Bits per element of each key, scales and zero points included."""
    values: Float[Array, " n"]

    def __len__(self) -> int:
        return len(self.positions)

    def append(self, positions: Int[Array, " m"], keys: float, values: float) -> "StoredBits":
        """Add tokens whose keys and values have so many bits per element."""
        m = len(positions)
        return StoredBits(
            np.append(self.positions, positions),
            np.append(self.keys, np.full(m, float(keys))),
            np.append(self.values, np.full(m, float(values))),
        )

    def lower(self, keys: Float[Array, " n"], values: Float[Array, " n"]) -> "StoredBits":
        """Store entries at these bits; an entry that has fewer bits already keeps them."""
        return replace(
            self, keys=np.minimum(self.keys, keys), values=np.minimum(self.values, values)
        )

    def take(self, keep: Int[Array, " kept"]) -> "StoredBits":
        """Return these entries alone."""
        return StoredBits(self.positions[keep], self.keys[keep], self.values[keep])


def bits_on_arrival(precision: Precision, head_dim: int) -> tuple[float, float]:
    """Return the bits per element that `Precision.encode` leaves of a key and of a value."""
    if not isinstance(precision, OnArrival):
        return FULL_BITS, FULL_BITS
    return precision.keys.bits_with_scales(head_dim), precision.values.bits_with_scales(head_dim)


def after_storing(
    precision: Precision, held: StoredBits, seen: Observation, keep: Int[Array, " kept"]
) -> StoredBits:
    """Return the bits that `Precision.store` leaves; in ``seen`` only positions and bits are real.

    DesireKV is counted as if no token were doubtful, and the newest ones were the sensitive ones.
    """
    head_dim = seen.keys.shape[-1]
    keys, values = np.full((2, len(held)), float(FULL_BITS))
    match precision:
        case Demote(options=options):
            keys[:] = _per_token(options.bits, options.group, head_dim)
            keys[keep] = FULL_BITS
            return held.lower(keys, keys)
        case KeysPerChannelValuesPerToken(options=options):
            keys_due, values_due = precision.due(len(held))
            keys[keys_due] = options.key_bits + SCALE_AND_ZERO / options.group
            values[values_due] = _per_token(options.value_bits, options.group, head_dim)
            return held.lower(keys, values)
        case BitsBySensitivity(options=options):
            decided = keep[decision_window(options, seen)[0][keep]]
            high = round(len(decided) * (1 - options.sensitivity_quantile))
            for chosen, bits in (
                (decided, options.low_bits),
                (decided[len(decided) - high :], options.high_bits),
            ):
                keys[chosen] = _per_token(bits, options.group, head_dim)
                values[chosen] = _per_token(options.value_bits or bits, options.group, head_dim)
            return held.lower(keys, values).take(keep)
    return held.take(keep)


class Tables:
    """The tables of one layer whose entries are stored at several precisions."""

    def __init__(self, precision: Precision, new_bits: tuple[float, float]) -> None:
        self.oldest = isinstance(precision, KeysPerChannelValuesPerToken)
        """Whether the rows that are quantised are always the oldest ones."""
        self.chosen = isinstance(precision, Demote | BitsBySensitivity)
        """Whether they are chosen, so that slots are in no order."""
        self.new_bits = new_bits
        self.sides: tuple[dict[float, Rows], ...] = ({}, {})
        """By their bits per element: of keys, and of values."""

    def arrive(self, tokens: int) -> None:
        """Add tokens, at the bits that they have at the end of their step."""
        for side, bits in zip(self.sides, self.new_bits, strict=True):
            side.setdefault(bits, Rows()).add(tokens)

    def decide(self, held: StoredBits) -> None:
        """Let the tables hold what a decision has left."""
        for side, bits in zip(self.sides, (held.keys, held.values), strict=True):
            wanted = dict.fromkeys(side, 0) | _counted(bits)
            for each, rows in wanted.items():
                table = side.setdefault(each, Rows())
                if rows > table.used:
                    table.add(rows - table.used)
                elif rows < table.used:
                    table.remove(table.used - rows, self.oldest)

    @property
    def stored(self) -> float:
        """Bits that are allocated, per channel of a head."""
        return sum(bits * rows.room for side in self.sides for bits, rows in side.items())

    @property
    def numbered(self) -> int:
        """Rows whose slots are written down."""
        several = any(sum(rows.used > 0 for rows in side.values()) > 1 for side in self.sides)
        rows = sum(rows.used for side in self.sides for rows in side.values())
        return rows if self.chosen and several else 0


def _counted(bits: Float[Array, " n"]) -> dict[float, int]:
    """Return how many there are of each of a few numbers."""
    found = {}
    while len(bits):
        more = bits[bits > bits.min()]
        found[float(bits.min())] = len(bits) - len(more)
        bits = more
    return found


def _per_token(bits: int, group: int, head_dim: int) -> float:
    """Return the bits per element of a vector that is quantised in groups of its channels."""
    if bits == FULL_BITS:
        return bits
    return bits + SCALE_AND_ZERO * ceil(head_dim / group) / head_dim


def mean_of_layers(layers: Sequence[Occupancy]) -> Occupancy:
    """Return the means over layers; a token is ``ranked`` if it is in any of them."""
    if len(layers) == 1:
        return layers[0]
    mean = {name: np.mean([vars(x)[name] for x in layers], axis=0) for name in vars(layers[0])}
    bits, entries = np.mean([x.entries * x.bits for x in layers], axis=0), mean["entries"]
    bits = np.divide(bits, entries, out=np.full_like(bits, FULL_BITS), where=entries > 0)
    ranked = np.any([each.ranked for each in layers], axis=0)
    return Occupancy(**(mean | {"bits": bits, "ranked": ranked}))


def occupancies(
    policy: Policy,
    prompt: int,
    generated: int,
    block_size: int | None = None,
    head_dim: int = 128,
    layers: int = 1,
) -> list[Occupancy]:
    """Count the entries in every layer under a policy for so many given and written tokens.

    The list holds one result for each layer, or one for all of them if the policy does not ask
    which layer it decides about.
    """
    given = policy, prompt, generated, block_size, head_dim, layers
    first, asked = _of_layer(0, *given)
    return [first, *(_of_layer(n, *given)[0] for n in range(1, layers) if asked)]


def _of_layer(
    layer: int,
    policy: Policy,
    prompt: int,
    generated: int,
    block_size: int | None,
    head_dim: int,
    layers: int,
) -> tuple[Occupancy, bool]:
    """Count the entries in one layer; also say whether the policy asked for its number."""
    t, asked = prompt + generated, False
    counts = {each.name: np.zeros(t, dtype=np.int64) for each in fields(Occupancy)}
    floats = {"bits": np.full(t, float(FULL_BITS)), "stored": np.zeros(t)}
    found = Occupancy(**(counts | floats | {"ranked": np.zeros(t, dtype=bool)}))
    held = StoredBits(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))
    count, held_bits, slots = 0, 0.0, 0
    new_bits = bits_on_arrival(policy.precision, head_dim)
    tables = None if isinstance(policy.precision, Full) else Tables(policy.precision, new_bits)
    in_place = tables is None and not policy.evict_before_attend
    last = 0
    for length in block_lengths(prompt, generated, block_size):
        first, last = last, last + length
        clock = Clock(last, length, prompt)
        count += clock.block
        found.attended[first:last] = count
        slots = grown(slots, count)
        if tables is not None:
            tables.arrive(clock.block)
        if policy.schedule.due(clock):
            before = held.append(np.arange(last - (count - len(held)), last), *new_bits)
            seen = _without_data(clock, before, head_dim, layer, layers)
            held, found.ranked[last - 1] = _decide(policy, seen, before)
            asked |= seen.asked
            found.quantised[last - 1] = _lowered(before, held)
            if tables is not None:
                tables.decide(held)
            if count - len(held) > 1 or not in_place:
                slots = shrunk(slots, len(held))
            count, held_bits = len(held), float((held.keys.sum() + held.values.sum()) / 2)
        if min(new_bits) < FULL_BITS:
            found.quantised[last - 1] += clock.block
        found.entries[first:last], found.slots[first:last] = count, slots
        found.stored[first:last] = 2 * FULL_BITS * slots if tables is None else tables.stored
        found.numbered[first:last] = 0 if tables is None else tables.numbered
        if count:
            found.bits[first:last] = (held_bits + sum(new_bits) / 2 * (count - len(held))) / count
    return found, asked


def _lowered(before: StoredBits, after: StoredBits) -> int:
    if min(after.keys.min(initial=FULL_BITS), after.values.min(initial=FULL_BITS)) == FULL_BITS:
        return 0
    everyone = len(after) == len(before)
    left = slice(None) if everyone else np.searchsorted(before.positions, after.positions)
    lower = (after.keys < before.keys[left]) | (after.values < before.values[left])
    return int(lower.sum())


def _decide(policy: Policy, seen: Observation, held: StoredBits) -> tuple[StoredBits, bool]:
    """Select and store; the oldest candidates are evicted. Also say whether any had to be."""
    protected = policy.protect.protected(seen)[0]
    room = policy.budget.room(seen, protected[None])
    candidates = np.nonzero(~protected)[0]
    kept = np.ones_like(protected)
    kept[candidates[: max(0, len(candidates) - room)]] = False
    after = after_storing(policy.precision, held, seen, np.nonzero(kept)[0])
    return after, room < len(candidates)


class _WithoutData(Observation):
    """Notes whether the number of the layer is asked for."""

    @property
    def asked(self) -> bool:
        """Whether it was."""
        return "_asked" in vars(self)

    def __getattribute__(self, name: str) -> Any:
        if name == "layer":
            vars(self)["_asked"] = True
        return super().__getattribute__(name)


def _without_data(
    clock: Clock, held: StoredBits, head_dim: int, layer: int, layers: int
) -> _WithoutData:
    n = len(held)
    nothing = np.broadcast_to(0.0, (1, n, head_dim))
    return _WithoutData(
        clock=clock,
        layer=layer,
        layers=layers,
        queries=np.broadcast_to(0.0, (1, 1, clock.block, head_dim)),
        attention=np.broadcast_to(0.0, (1, 1, clock.block, n)),
        keys=nothing,
        values=nothing,
        positions=held.positions[None],
        bits=held.keys[None].astype(np.int64),
        confidence=np.full(clock.seen, np.nan),
    )
