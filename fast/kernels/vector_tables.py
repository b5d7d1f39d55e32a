"""Tables of vectors of several precisions, for `kvlab.fast.kernels.mixed_precision`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

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

    slots: Int[Tensor, "N G rows"]
    """−1 for rows that belong to no entry: sequences of a batch may fill tables unequally."""
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
        return self.slots.shape[2]

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
        return torch.where(self.slots < 0, entries, self.slots).long()

    def map_rows(self, change: Callable[[Tensor], Tensor], order: Sequence[int]) -> "VectorTable":
        """Apply one change of the batch axis; ``order`` is the same change as indices."""
        counts = tuple(self.counts[i] for i in order)
        return self._of(tuple(map(change, self.parts)), change(self.slots), counts)

    def take(self, rows: Int[Tensor, "N G kept"], counts: tuple[int, ...]) -> "VectorTable":
        """Return a table of only these rows in this order; no method evicts groups of rows."""
        if self.by_channel:
            raise ValueError("a per-channel quantised block cannot lose single tokens")
        parts = tuple(take(part, rows) for part in self.parts)
        return self._of(parts, self.slots.gather(2, rows), counts)

    def extend(self, other: "VectorTable") -> "VectorTable":
        """Return this table followed by another of the same format."""
        both = zip(self.parts, other.parts, strict=True)
        grows = self.code is None and self.rows > 0 and other.rows == 1
        grows = grows and self.slots.device.type == "cpu"  # kernels read dense tables
        grows = grows and self.parts[0].dtype == other.parts[0].dtype
        parts = tuple(_added(*pair) if grows else torch.cat(pair, dim=2) for pair in both)
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return self._of(parts, torch.cat([self.slots, other.slots], dim=2), counts)

    def _of(self, parts: Parts, slots: Tensor, counts: tuple[int, ...]) -> "VectorTable":
        coded = isinstance(self.vectors, Coded)
        vectors = replace(self.vectors, parts=parts) if coded else parts[0]
        return replace(self, slots=slots, vectors=vectors, counts=counts)


def _added(rows: Float[Tensor, "N G n d"], row: Float[Tensor, "N G 1 d"]) -> Tensor:
    """Write one more row of every head behind the others, which move only if there is no room."""
    n, d = rows.shape[2:]
    if n == rows.stride(1) // rows.stride(2):
        rows = torch.nn.functional.pad(rows, (0, 0, 0, min(MOST_SLACK, 1 + n // 16)))
    rows = rows.as_strided((*rows.shape[:2], n + 1, d), rows.stride())
    rows[:, :, n:] = row
    return rows


def in_slots(
    tables: Sequence[VectorTable], rows: Sequence[Tensor], entries: int, empty: float = 0
) -> Shaped[Tensor, "N G n *d"]:
    """Return rows ``[N, G, rows, ...]`` of tables in their slots, ``empty`` in all others."""
    N, G, _, *d = rows[0].shape
    in_use = all(table.counts and min(table.counts) == table.rows for table in tables)
    whole = in_use and sum(table.rows for table in tables) == entries
    if whole and rows[0].device.type == "cpu" and (order := _one_after_another(tables)):
        return rows[order[0]] if len(order) == 1 else torch.cat([rows[i] for i in order], dim=2)
    shape = (N, G, entries + 1, *d)
    found = rows[0].new_empty(shape) if whole else rows[0].new_full(shape, empty)
    heads = torch.arange(N * G, device=found.device).view(N, G, 1) * (entries + 1)
    for table, added in zip(tables, rows, strict=True):
        targets = (heads + table.targets(entries)).flatten()
        found.flatten(0, 2).index_copy_(0, targets, added.flatten(0, 2))
    return found[:, :, :entries]


def _one_after_another(tables: Sequence[VectorTable]) -> list[int] | None:
    """Return the order in which the rows of tables are all slots in turn, if there is one."""
    order = [number for number, table in enumerate(tables) if table.rows]
    order.sort(key=lambda number: int(tables[number].slots[0, 0, 0]))
    slots = torch.cat([tables[number].slots for number in order], dim=2)
    every = torch.arange(slots.shape[2], device=slots.device)
    return order if torch.equal(slots, every.expand_as(slots)) else None


def partners_of(
    keys: Sequence[VectorTable], values: Sequence[VectorTable], entries: int
) -> list[Int[Tensor, "N G _"]]:
    """Say for every row of the tables of keys where the value of its entry lies.

    Per table of keys: number of the table of values · 2^`TABLE_SHIFT` + row, int32; −1 for rows
    that belong to no entry.
    """
    slots = values[0].slots
    where = torch.full((*slots.shape[:2], entries + 1), -1, dtype=torch.int32, device=slots.device)
    for number, table in enumerate(values):
        rows = torch.arange(table.rows, dtype=torch.int32, device=slots.device)
        rows = (rows + (number << TABLE_SHIFT)).expand(table.slots.shape)
        where.scatter_(2, table.targets(entries), rows)
    where[:, :, entries] = -1
    return [where.gather(2, table.targets(entries)) for table in keys]
