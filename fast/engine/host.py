"""Parts of a policy that have no PyTorch implementation: the reference computes them in NumPy.

Every sequence of the batch is handed to the reference as if it were alone: its own entries in
ascending position, without padding, in float64. What a score remembers of the entries lies in the
cache's columns, and what it remembers of the token stream beside them, one mapping per sequence; so
both move with the entries and the sequences. That copies keys and values to the host at every step.
"""

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kvlab.fast.engine.cache import State
from kvlab.fast.engine.observation import Needs, Observation, Rotate
from kvlab.fast.engine.policy import Budget, Protect, Retention, Score
from kvlab.fast.kernels.notation import Candidates, Marks, Room, Scores, Tensor
from kvlab.reference import policy as reference
from kvlab.reference.cache import State as ReferenceState
from kvlab.reference.notation import Array
from kvlab.reference.observation import (
    Clock,
    Observation as ReferenceObservation,
    Rotate as ReferenceRotate,
)
from kvlab.reference.step import check_scores, check_state

STREAM = "sequences"
"""Key of `State.stream` for what the reference remembers of each sequence's token stream."""

_named: set[type] = set()


def say_once(part: object) -> None:
    """Warn that a part of a policy is slow; once per process and class."""
    if type(part) not in _named:
        _named.add(type(part))
        logging.getLogger("kvlab").warning(
            "%s has no PyTorch implementation: the reference computes it on the host, which is "
            "slow (kvlab.fast.engine.twins.twin_of marks an implementation)",
            type(part).__name__,
        )


@dataclass(frozen=True)
class HostScore(Score[reference.Score]):
    """A score of the reference; it observes a long block at once, and not part by part."""

    runs_the_reference = True

    @property
    def needs(self) -> Needs:
        return replace(super().needs, heads="apart", sums_rows=False, may_wait=False)

    def observe(self, state: State, seen: Observation) -> None:
        for row in sequences(seen):
            if row.clock.block:
                remembered = self.spec.observe(row.state, row.seen)
                check_state(self.spec, remembered, row.slots.shape)
                row.remember(remembered)

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        scores = torch.zeros(seen.positions.shape, dtype=torch.float64, device="cpu")
        for row in sequences(seen):
            open_entries = row.marked(candidates)
            if room[row.number] >= open_entries.sum(axis=-1).max(initial=0):
                continue
            found = self.spec.score(row.state, row.seen, open_entries, room[row.number])
            check_scores(self.spec, found, open_entries, seen.layer)
            scores[row.number] = row.in_slots(found)
        return scores.to(seen.positions.device)

    def retention(self, state: State, seen: Observation, candidates: Candidates) -> Retention:
        found = {}
        for row in sequences(seen):
            if row.entries:
                open_entries = row.marked(candidates)
                weights = self.spec.retention(row.state, row.seen, open_entries)
                if (weights < 0).any():
                    name = type(self.spec).__name__
                    raise ValueError(f"retention must be at least 0: {name} gave a negative one")
                found[row.number] = row.in_slots(weights)
        nothing = torch.zeros_like(next(iter(found.values())))
        rows = [found.get(number, nothing) for number in range(len(seen.positions))]
        return Retention(torch.stack(rows).to(seen.queries))


@dataclass(frozen=True)
class HostProtect(Protect[reference.Protect]):
    """A protection of the reference."""

    runs_the_reference = True

    def protected(self, seen: Observation) -> Marks:
        marks = torch.zeros(seen.positions.shape, dtype=torch.bool, device="cpu")
        for row in sequences(seen):
            if row.entries:
                protected = self.spec.protected(row.seen)
                if np.ptp(protected.sum(axis=-1)):
                    counts = protected.sum(axis=-1)
                    raise ValueError(
                        f"every KV head must protect equally many entries, got {counts}"
                    )
                marks[row.number] = row.in_slots(protected)
        return marks.to(seen.positions.device)

    def count(self, clock: Clock, entries: int) -> None:
        return


@dataclass(frozen=True)
class HostBudget(Budget[reference.Budget]):
    """A budget of the reference."""

    runs_the_reference = True

    def room_in(
        self, seen: Observation, number: int, entries: int, protected: int, marks: Marks | None
    ) -> int:
        row = sequences(seen)[number]
        return self.spec.room(row.seen, ~row.marked(None if marks is None else ~marks))


class HostSequence:
    """One sequence of a batch as the reference sees it."""

    def __init__(self, seen: Observation, number: int) -> None:
        self.cache = cache = seen.cache
        self.number = number
        self.clock = seen.clock.rows[number]
        positions = as_array(seen.positions[number])
        empty = positions.shape[1] - cache.counts[number]
        self.slots = positions.argsort(axis=-1, kind="stable")[:, empty:]
        """Slots of the entries, per head in ascending position: empty slots have position -1."""
        self.width, self.entries = positions.shape[1], cache.counts[number]
        self.seen = self._observation(seen, positions)
        remembered = cache.columns.state
        self.state = ReferenceState(
            {
                name: self.of_entries(cache.columns[name][number].cpu().numpy())
                for name in remembered
            },
            cache.state.stream[STREAM][number] if STREAM in cache.state.stream else {},
        )

    def _observation(self, seen: Observation, positions: Array) -> ReferenceObservation:
        number, block = self.number, self.clock.block
        queries = as_array(seen.queries[number])
        first, hidden = queries.shape[2] - block, seen.hidden_states
        return ReferenceObservation(
            clock=self.clock,
            layer=seen.layer,
            layers=seen.layers,
            queries=queries[:, :, first:],
            attention=self._attention(seen, queries.shape[1], block),
            keys=self.of_entries(as_array(seen.keys[number])),
            values=self.of_entries(as_array(seen.values[number])),
            positions=self.of_entries(positions),
            bits=self.of_entries(as_array(seen.bits[number])),
            confidence=as_array(seen.confidence[number, : self.clock.seen]),
            softcap=seen.view.softcap,
            hidden_states=None if hidden is None else as_array(hidden[number, first:]),
            rotary=on_arrays(seen.rotations[0]) if seen.rotations else None,
            projection=as_array(seen.projections[0]) if seen.projections else None,
        )

    def _attention(self, seen: Observation, rho: int, block: int) -> Array:
        """Return the rows that the score reads; NaN stands for rows that were not computed."""
        G, n = self.slots.shape
        attention = np.full((G, rho, block, n), np.nan)
        if seen.attended.weights is not None:
            weights = as_array(seen.attended.weights[self.number])
            rows = min(block, weights.shape[2])
            index = np.broadcast_to(self.slots[:, None, None], (G, rho, rows, n))
            last = weights[:, :, weights.shape[2] - rows :]
            attention[:, :, block - rows :] = np.take_along_axis(last, index, axis=-1)
        return attention

    def of_entries(self, per_slot: Array) -> Array:
        """Return the part of ``[G, slots, ...]`` that belongs to entries, in ascending position."""
        index = self.slots.reshape(*self.slots.shape, *[1] * (per_slot.ndim - 2))
        return np.take_along_axis(per_slot, index, axis=1)

    def marked(self, candidates: Candidates) -> Array:
        """Return which entries may be evicted."""
        if candidates is None:
            return np.ones(self.slots.shape, dtype=bool)
        return self.of_entries(candidates[self.number].cpu().numpy())

    def in_slots(self, per_entry: Array) -> Tensor:
        """Put numbers of the entries ``[G, ..., n]`` into their slots; 0 in empty ones."""
        per_slot = np.zeros((*per_entry.shape[:-1], self.width), dtype=per_entry.dtype)
        between = [1] * (per_entry.ndim - 2)
        index = self.slots.reshape(len(self.slots), *between, self.slots.shape[1])
        np.put_along_axis(per_slot, np.broadcast_to(index, per_entry.shape), per_entry, axis=-1)
        return torch.from_numpy(per_slot)

    def remember(self, state: ReferenceState) -> None:
        """Write what the score remembers back into the cache."""
        self.state = state
        columns, stream = self.cache.columns, self.cache.state.stream
        for name, numbers in state.entries.items():
            columns[name][self.number].copy_(self.in_slots(numbers))
        every = list(stream.get(STREAM, [{}] * len(self.cache.counts)))
        every[self.number] = state.stream
        stream[STREAM] = tuple(every)


def sequences(seen: Observation) -> list[HostSequence]:
    """Return every sequence of the batch; they are made once per observation."""
    if STREAM not in seen.memo:
        seen.memo[STREAM] = [HostSequence(seen, number) for number in range(len(seen.clock.rows))]
    return seen.memo[STREAM]


def on_arrays(rotate: Rotate) -> ReferenceRotate:
    """Return a rotation of tensors as one of NumPy arrays."""
    return lambda vectors, by: as_array(rotate(torch.tensor(vectors), torch.tensor(by)))


def as_array(x: Tensor) -> Any:
    """Return a tensor as a NumPy array; floating-point numbers become float64."""
    array = x.detach().cpu()
    return (array.double() if array.is_floating_point() else array).numpy()
