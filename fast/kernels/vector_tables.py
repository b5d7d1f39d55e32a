"""Tables of vectors of several precisions, for `kvlab.fast.kernels.mixed_precision`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.codes import Coded, Parts
from kvlab.fast.kernels.quantise import Groups, take
from kvlab.reference.quantization import FULL_BITS

MOST_SLACK = 64
"""Rows that memory may have room for beyond those in use once a step is done."""

TABLE_SHIFT = 27
"""A partner is the number of a table, shifted by this many bits, and a row of it."""


@dataclass(frozen=True)
class VectorTable:
    """Vectors of one precision, and the slots of the entries that they belong to."""

    slots: Int[Tensor, "N G rows"] | range
    """A range where every head's rows are of the same slots in turn; −1 for rows of no entry."""
    vectors: Float[Tensor, "N G rows d"] | Coded
    """Plain numbers, or codes."""
    by_channel: bool = False
    """Whether groups are of consecutive rows, not channels: ``[N, G, blocks, d, bytes]``."""
    counts: tuple[int, ...] = ()
    """Rows in use per head, for each sequence, where the host keeps count of them."""

    @property
    def bits(self) -> int:
        """Bits per element, without scales and zero points."""
        return FULL_BITS if self.code is None else self.code.bits

    @property
    def rows(self) -> int:
        """Rows per head."""
        return len(self.slots) if isinstance(self.slots, range) else self.slots.shape[2]

    @property
    def slots_of_heads(self) -> Int[Tensor, "N G rows"]:
        """The slots of every head's rows."""
        if isinstance(self.slots, Tensor):
            return self.slots
        first = self.parts[0]
        slots = torch.arange(self.slots.start, self.slots.stop, device=first.device)
        return slots.expand(*first.shape[:2], -1)

    @property
    def code(self) -> Any:
        """How vectors are coded, None for plain numbers."""
        return self.vectors.code if isinstance(self.vectors, Coded) else None

    @property
    def parts(self) -> Parts:
        """The numbers, or the packed codes and what belongs to them."""
        return self.vectors.parts if isinstance(self.vectors, Coded) else (self.vectors,)

    @property
    def readable(self) -> bool:
        """Whether attention kernels can read the codes: rows, or groups of rows, fill bytes."""
        if not isinstance(self.code, Groups):
            return self.code is None
        whole = not self.by_channel or self.code.group * self.bits % 8 == 0
        return FULL_BITS % self.bits == 0 and whole

    @property
    def payload_bytes(self) -> int:
        """Bytes of the elements, and of the room behind those that are plain numbers."""
        elements = self.parts[0]
        room = elements[:, :, :1].nbytes * (elements.stride(1) // elements.stride(2))
        return room if self.code is None and self.rows else elements.nbytes

    @property
    def overhead_bytes(self) -> int:
        """Bytes of scales, zero points and norms."""
        return sum(part.nbytes for part in self.parts[1:])

    def read(self, dtype: torch.dtype) -> Float[Tensor, "N G rows d"]:
        """Return the vectors, dequantised."""
        if isinstance(self.vectors, Tensor):
            return self.vectors.to(dtype)
        read = self.vectors.dequantize(dtype)
        return read.transpose(-1, -2).flatten(2, 3) if self.by_channel else read

    def targets(self, entries: int) -> Int[Tensor, "N G rows"]:
        """Return the slots, with ``entries`` for rows that belong to no entry."""
        slots = self.slots_of_heads
        return slots if slots is not self.slots else torch.where(slots < 0, entries, slots).long()

    def map_rows(self, change: Callable[[Tensor], Tensor], order: Sequence[int]) -> "VectorTable":
        """Apply one change of the batch axis; ``order`` is the same change as indices."""
        counts = tuple(self.counts[i] for i in order)
        slots = self.slots if isinstance(self.slots, range) else change(self.slots)
        return self._of(tuple(map(change, self.parts)), slots, counts)

    def take(self, rows: Int[Tensor, "N G kept"], counts: tuple[int, ...]) -> "VectorTable":
        """Return a table of only these rows in this order; no method evicts groups of rows."""
        if self.by_channel:
            raise ValueError("a per-channel quantised block cannot lose single tokens")
        parts = tuple(take(part, rows) for part in self.parts)
        return self._of(parts, self.slots_of_heads.gather(2, rows), counts)

    def behind(self, first: int) -> "VectorTable":
        """Return the rows from ``first`` on of plain numbers in a range of slots.

        They stay where they are if that keeps no more than `MOST_SLACK` other rows in memory.
        """
        assert isinstance(self.slots, range)
        vectors = self.parts[0][:, :, first:]
        if first > MOST_SLACK or first == self.rows:
            vectors = vectors.clone()
        return self._of((vectors,), self.slots[first:], tuple(c - first for c in self.counts))

    def extend(self, other: "VectorTable") -> "VectorTable":
        """Return this table followed by another of the same format."""
        both = zip(self.parts, other.parts, strict=True)
        grows = self.code is None and self.rows > 0 and other.rows == 1
        grows = grows and not uses_triton(self.parts[0])  # whose kernels read dense tables
        grows = grows and self.parts[0].dtype == other.parts[0].dtype
        parts = tuple(_added(*pair) if grows else torch.cat(pair, dim=2) for pair in both)
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return self._of(parts, self._slots_before(other), counts)

    def _slots_before(self, other: "VectorTable") -> Tensor | range:
        """Return the slots of this table's rows, and then those of another's."""
        mine, theirs = self.slots, other.slots
        if self.rows == 0:
            return theirs
        if isinstance(mine, range) and isinstance(theirs, range) and mine.stop == theirs.start:
            return range(mine.start, theirs.stop)
        return torch.cat([self.slots_of_heads, other.slots_of_heads], dim=2)

    def _of(self, parts: Parts, slots: Tensor | range, counts: tuple[int, ...]) -> "VectorTable":
        coded = isinstance(self.vectors, Coded)
        vectors = replace(self.vectors, parts=parts) if coded else parts[0]
        return replace(self, slots=slots, vectors=vectors, counts=counts)


def _added(rows: Float[Tensor, "N G n d"], row: Float[Tensor, "N G 1 d"]) -> Tensor:
    """Write one more row of every head behind the others, which move only if there is no room."""
    n, d = rows.shape[2:]
    room = rows.stride(1) // d
    if n + int(rows.storage_offset()) // d % room == room:
        rows = torch.nn.functional.pad(rows, (0, 0, 0, min(MOST_SLACK, 1 + n // 16)))
    rows = rows.as_strided((*rows.shape[:2], n + 1, d), rows.stride())
    rows[:, :, n:] = row
    return rows


def in_slots(
    tables: Sequence[VectorTable], rows: Sequence[Tensor], entries: int, empty: float = 0
) -> Shaped[Tensor, "N G n *d"]:
    """Return rows ``[N, G, rows, ...]`` of tables in their slots, ``empty`` in all others."""
    N, G, _, *d = rows[0].shape
    whole = all_in_use(tables, entries)
    if whole and (ranges := ranges_of(tables)) and entries:
        order = sorted((each.start, number) for number, each in enumerate(ranges) if each)
        found = [rows[number] for _, number in order]
        return found[0] if len(found) == 1 else torch.cat(found, dim=2)
    shape = (N, G, entries + 1, *d)
    found = rows[0].new_empty(shape) if whole else rows[0].new_full(shape, empty)
    heads = torch.arange(N * G, device=found.device).view(N, G, 1) * (entries + 1)
    for table, added in zip(tables, rows, strict=True):
        targets = (heads + table.targets(entries)).flatten()
        found.flatten(0, 2).index_copy_(0, targets, added.flatten(0, 2))
    return found[:, :, :entries]


def all_in_use(tables: Sequence[VectorTable], entries: int) -> bool:
    """Say whether the rows of tables are the entries, and no row is of none."""
    whole = all(table.counts and min(table.counts) == table.rows for table in tables)
    return bool(whole) and sum(table.rows for table in tables) == entries


def ranges_of(tables: Sequence[VectorTable]) -> tuple[range, ...] | None:
    """Return the slots of tables if each has a range of them; an empty one for a table of none."""
    slots = [table.slots if table.rows else range(0) for table in tables]
    found = tuple(each for each in slots if isinstance(each, range))
    return found if len(found) == len(slots) else None


def partners_of(
    keys: Sequence[VectorTable], values: Sequence[VectorTable], entries: int
) -> list[Int[Tensor, "N G _"]]:
    """Say for every row of the tables of keys where the value of its entry lies.

    Per table of keys: number of the table of values · 2^`TABLE_SHIFT` + row, int32; −1 for rows
    that belong to no entry.
    """
    key_ranges, value_ranges = ranges_of(keys), ranges_of(values)
    if key_ranges and value_ranges:
        first = keys[0].parts[0]
        N, G = first.shape[:2]
        return list(_partners_in_turn(N, G, first.device, key_ranges, value_ranges))
    slots = values[0].slots_of_heads
    where = torch.full((*slots.shape[:2], entries + 1), -1, dtype=torch.int32, device=slots.device)
    for number, table in enumerate(values):
        rows = torch.arange(table.rows, dtype=torch.int32, device=slots.device)
        rows = (rows + (number << TABLE_SHIFT)).expand(*slots.shape[:2], -1)
        where.scatter_(2, table.targets(entries), rows)
    where[:, :, entries] = -1
    return [where.gather(2, table.targets(entries)) for table in keys]


@lru_cache(maxsize=2)
def _partners_in_turn(
    N: int, G: int, device: torch.device, keys: tuple[range, ...], values: tuple[range, ...]
) -> tuple[Int[Tensor, "N G _"], ...]:
    """Return `partners_of` tables whose slots are ranges; all layers ask for the same ones."""
    last = max(slots.stop for slots in (*keys, *values))
    where = torch.full((last,), -1, dtype=torch.int32, device=device)
    for number, slots in enumerate(values):
        first = number << TABLE_SHIFT
        where[slots.start : slots.stop] = torch.arange(
            first, first + len(slots), dtype=torch.int32, device=device
        )
    where = where.expand(N, G, last)
    return tuple(where[:, :, slots.start : slots.stop].contiguous() for slots in keys)
