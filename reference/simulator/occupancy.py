"""How many entries a policy holds in every layer, and at how many bits, from its rules alone.

Schedules, protection and budgets are called as in a model, with positions but without queries, keys
or values. The number of kept entries does not depend on which entries are kept. Only the number of
DesireKV's doubtful tokens depends on data: here no token is doubtful.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Real

from kvlab.reference.accounting import StoredBits
from kvlab.reference.notation import Array
from kvlab.reference.observation import Clock, Observation
from kvlab.reference.policy import Policy
from kvlab.reference.quantization import FULL_BITS
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

    @property
    def peak(self) -> float:
        """The largest number of entries at any time, those of a block that arrives included."""
        return self.attended.max().item()

    def elements(self, head_dim: int) -> Float[Array, " t"]:
        """Bits of keys and values per KV head after each token."""
        return self.entries * self.bits * 2 * head_dim


def mean_of_layers(layers: Sequence[Occupancy]) -> Occupancy:
    """Return the means over layers; a token is ``ranked`` if it is in any of them."""
    if len(layers) == 1:
        return layers[0]
    attended, entries, quantised, bits = (
        np.mean(each, axis=0)
        for each in zip(
            *((x.attended, x.entries, x.quantised, x.entries * x.bits) for x in layers), strict=True
        )
    )
    bits = np.divide(bits, entries, out=np.full_like(bits, FULL_BITS), where=entries > 0)
    ranked = np.any([each.ranked for each in layers], axis=0)
    return Occupancy(attended, entries, ranked, bits, quantised)


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
    found = Occupancy(
        attended=np.zeros(t, dtype=np.int64),
        entries=np.zeros(t, dtype=np.int64),
        ranked=np.zeros(t, dtype=bool),
        bits=np.full(t, float(FULL_BITS)),
        quantised=np.zeros(t, dtype=np.int64),
    )
    held = StoredBits(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))
    count, held_bits = 0, 0.0
    new_bits = policy.precision.bits_on_arrival(head_dim)
    last = 0
    for length in block_lengths(prompt, generated, block_size):
        first, last = last, last + length
        clock = Clock(last, length, prompt)
        count += clock.block
        found.attended[first:last] = count
        if policy.schedule.due(clock):
            before = held.append(np.arange(last - (count - len(held)), last), *new_bits)
            seen = _without_data(clock, before, head_dim, layer, layers)
            held, found.ranked[last - 1] = _decide(policy, seen, before)
            asked |= seen.asked
            found.quantised[last - 1] = _lowered(before, held)
            count, held_bits = len(held), float((held.keys.sum() + held.values.sum()) / 2)
        if min(new_bits) < FULL_BITS:
            found.quantised[last - 1] += clock.block
        found.entries[first:last] = count
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
    safe = policy.protect.safe(seen)[0]
    room = policy.budget.room(seen, safe[None])
    candidates = np.nonzero(~safe)[0]
    stays = np.ones_like(safe)
    stays[candidates[: max(0, len(candidates) - room)]] = False
    after = policy.precision.account(held, seen, np.nonzero(stays)[0][None])
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
