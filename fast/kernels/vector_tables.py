"""Tables of vectors of several precisions, for `kvlab.fast.kernels.mixed_precision`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, ClassVar

import torch

from kvlab.fast.kernels.codes import Coded, Parts
from kvlab.fast.kernels.notation import Change, Float, Int, Shaped, Slots, Tensor
from kvlab.fast.kernels.quantise import Groups, take
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.slots import MOST_SLACK, room_for_more

TABLE_SHIFT = 27
"""A partner is the number of a table, shifted by this many bits, and a row of it."""

RowsOfHeads = Shaped[Tensor, "N G n *d"]
"""Rows of every head: vectors, or parts of their codes."""


@dataclass(frozen=True)
class VectorTable:
    """Vectors of one precision, and the slots of the entries that they belong to."""

    ALIKE: ClassVar = ("by_channel",)

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
        if isinstance(self.vectors, Tensor):
            return True
        if not isinstance(self.code, Groups):
            return False
        whole = not self.by_channel or self.code.group * self.bits % 8 == 0
        return FULL_BITS % self.bits == 0 and whole

    @property
    def payload_bytes(self) -> int:
        """Bytes of the elements, and of the room behind them."""
        return _allocated(self.parts[0])

    @property
    def overhead_bytes(self) -> int:
        """Bytes of scales, zero points and norms."""
        return sum(map(_allocated, self.parts[1:]))

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

    def map_rows(self, change: Change, order: Sequence[int]) -> "VectorTable":
        """Apply one change of the batch axis; ``order`` is the same change as indices."""
        counts = tuple(self.counts[i] for i in order)
        slots = self.slots if isinstance(self.slots, range) else change(self.slots)
        return self._of(tuple(map(change, self.parts)), slots, counts)

    def clone(self) -> "VectorTable":
        """Return a table of the same rows in memory of its own."""
        return self._of(tuple(map(_dense, self.parts)), self.slots, self.counts)

    def take(self, rows: Slots, counts: tuple[int, ...]) -> "VectorTable":
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
        vectors = self.parts[0].narrow(2, first, self.rows - first)
        if first > MOST_SLACK or first == self.rows:
            vectors = _dense(vectors)
        return self._of((vectors,), self.slots[first:], tuple(c - first for c in self.counts))

    def extend(self, other: "VectorTable") -> "VectorTable":
        """Return this table followed by another of the same format.

        One row is written into the room behind this table's: only a clone may be extended again.
        """
        mine, theirs = self.parts, other.parts
        alike = all(a.dtype == b.dtype for a, b in zip(mine, theirs, strict=True))
        grows = other.rows == 1 and self.rows > 0 and alike
        join = _added if grows else _joined
        parts = tuple(map(join, mine, theirs))
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
        old = self.vectors
        vectors = Coded(old.code, parts, old.length) if isinstance(old, Coded) else parts[0]
        return VectorTable(slots, vectors, self.by_channel, counts)


def _dense(rows: RowsOfHeads) -> Tensor:
    """Copy rows without room; ``clone`` alone would keep the strides of a single head."""
    return rows.clone(memory_format=torch.contiguous_format)


def _joined(rows: RowsOfHeads, more: Shaped[Tensor, "N G m *d"]) -> Tensor:
    return torch.cat([rows, more], dim=2)


def _added(rows: RowsOfHeads, row: Shaped[Tensor, "N G 1 *d"]) -> Tensor:
    """Write one more row of every head behind the others, which move only if there is no room.

    What lies between the heads of ``rows`` is theirs: nobody else holds a row there.
    """
    (N, G, n, *d), (_, per_head, per_row, *_) = rows.shape, rows.stride()
    if n * per_row + int(rows.storage_offset()) % per_head >= per_head:
        rows, held = rows.new_empty((N, G, room_for_more(n), *d)), rows
        rows.narrow(2, 0, n).copy_(held)
    rows = rows.as_strided((N, G, n + 1, *d), rows.stride())
    rows.narrow(2, n, 1).copy_(row)
    return rows


def room_of(rows: RowsOfHeads) -> int | None:
    """Return how many rows lie from one head to the next; None if they do not lie side by side."""
    (N, G, n, *d), (of_sequence, of_head, *own) = rows.shape, rows.stride()
    even = N == 1 or of_sequence == G * of_head
    dense = tuple(own) == tuple(prod(d[i:]) for i in range(len(d) + 1))
    return of_head // own[0] if n and even and dense and of_head % own[0] == 0 else None


def _allocated(rows: RowsOfHeads) -> int:
    """Return the bytes of rows, and of the room behind each head's last one."""
    return rows[:, :, :1].nbytes * (room_of(rows) or rows.shape[2])


def in_slots(
    tables: Sequence[VectorTable], rows: Sequence[Tensor], entries: int, empty: float = 0
) -> RowsOfHeads:
    """Return rows ``[N, G, rows, ...]`` of tables in their slots, ``empty`` in all others."""
    if turns := in_turn(tables, entries):
        found = [rows[number] for number in turns]
        return found[0] if len(found) == 1 else torch.cat(found, dim=2)
    (N, G, _, *d), whole = rows[0].shape, all_in_use(tables, entries)
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


def in_turn(tables: Sequence[VectorTable], entries: int) -> list[int] | None:
    """Return the numbers of tables in whose turn rows are all entries in the order of slots.

    None if there is no such order, or no entry.
    """
    ranges = ranges_of(tables) if all_in_use(tables, entries) else None
    if ranges is None or entries == 0:
        return None
    return sorted((n for n, each in enumerate(ranges) if each), key=lambda n: ranges[n].start)


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
