"""Keys or values of mixed precision: tables that are really packed, each knowing its slots."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import TypeVar

import torch

from kvlab.fast.engine.twins import Twin
from kvlab.fast.kernels.codes import Coded, Parts, Scale
from kvlab.fast.kernels.common import to_device
from kvlab.fast.kernels.keep import last_in_use
from kvlab.fast.kernels.notation import Bool, Change, Float, Int, RowVectors, Slots, Tensor, Vectors
from kvlab.fast.kernels.quantise import quantise, take
from kvlab.fast.kernels.vector_tables import VectorTable, in_slots, partners_of, ranges_of
from kvlab.reference import codes as reference
from kvlab.reference.quantization import FULL_BITS

EMPTY = -1
"""Slot of a row that belongs to no entry."""

Chosen = Int[Tensor, "N G chosen"] | range
"""Slots of some entries of every head; a range where they are the same in all."""
Spec = TypeVar("Spec", bound=reference.Code)


class Code(Twin[Spec], ABC):
    """A way to store a vector in few bits per element."""

    @property
    def bits(self) -> int:
        """Bits per element, without scales and norms."""
        return self.spec.bits

    def scale(self, vectors: Vectors) -> Scale | None:
        """Return the scale that the first block of a layer fixes; None if the code has none."""
        return None

    @abstractmethod
    def encode(self, x: RowVectors) -> Parts:
        """Return what is stored of vectors; the caller has divided them by the scale."""

    @abstractmethod
    def decode(self, parts: Parts, d: int, dtype: torch.dtype) -> RowVectors:
        """Return the vectors that attention reads, still divided by the scale."""


class Storage:
    """The vectors ``[N, G, n, d]`` of one layer, each slot in one of several tables.

    ``balance`` multiplies a key before it is quantised and divides it after it is read (MiKV).
    ``scale`` divides a vector before a code stores it and multiplies it after it is read.
    """

    ALIKE = ("count", "changes")

    def __init__(self, like: Float[Tensor, "N G m d"]) -> None:
        self.tables = [VectorTable(range(0), like[:, :, :0], counts=(0,) * len(like))]
        """The first holds what is at full precision."""
        self.balance: Float[Tensor, "N G d"] | None = None
        self.scale: Scale | None = None
        self.count = 0
        self.changes = 0
        """How often rows have moved; rows that are added at the end do not count."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of all elements."""
        return sum(table.payload_bytes for table in self.tables)

    @property
    def overhead_bytes(self) -> int:
        """Bytes of scales, zero points, norms, balance factors and slot numbers."""
        factors = sum(each.nbytes for each in (self.balance, self.scale) if each is not None)
        slots = sum(each.slots.nbytes for each in self.tables if isinstance(each.slots, Tensor))
        return factors + slots + sum(table.overhead_bytes for table in self.tables)

    def bits(self) -> Int[Tensor, "N G n"]:
        """Bits per element of each slot, without scales and zero points."""
        bits = [torch.full_like(table.slots_of_heads, table.bits) for table in self.tables]
        return in_slots(self.tables, bits, self.count, FULL_BITS)

    def read(self, dtype: torch.dtype) -> Vectors:
        """Return what attention reads; empty slots hold zeros."""
        found = [table.read(dtype) for table in self.tables]
        if self.balance is not None:
            found[1:] = [rows / self.balance[:, :, None].to(dtype) for rows in found[1:]]
        if self.scale is not None:
            found[1:] = [rows * self.scale.to(dtype) for rows in found[1:]]
        return in_slots(self.tables, found, self.count)

    @property
    def readable(self) -> bool:
        """Whether attention kernels can read the tables; they read no balanced keys."""
        return self.balance is None and all(table.readable for table in self.tables)

    def append(
        self,
        vectors: Float[Tensor, "N G m d"],
        used: Bool[Tensor, "#N m"],
        counts: tuple[int, ...],
    ) -> None:
        """Add slots at full precision; ``used`` are those with a token, ``counts`` how many."""
        m = vectors.shape[2]
        new = VectorTable(range(self.count, self.count + m), vectors, counts=counts)
        if min(counts) < m:
            new = replace(new, slots=torch.where(used[:, None], new.slots_of_heads, EMPTY))
        self.tables[0] = self.tables[0].extend(new)
        self.count += m

    def take(self, keep: Slots, counts: Sequence[int]) -> None:
        """Keep only these slots; the others are freed.

        ``counts`` are slots in use, at the end, of each sequence. Waits for the device, unless all
        entries are in one table in the order of their slots.
        """
        kept, counts = keep.shape[2], tuple(counts)
        N, G = keep.shape[:2]
        ranges = ranges_of(self.tables)
        if ranges and max(map(len, ranges)) == self.count and min(counts) == kept:
            self.tables = [
                replace(table.take(keep, counts), slots=range(kept)) if table.rows else table
                for table in self.tables
            ]
            self.count = kept
            self.changes += 1
            return
        valid = last_in_use(kept, counts, keep.device)
        renamed = torch.full((N, G, self.count + 1), EMPTY, device=keep.device)
        places = torch.arange(kept, device=keep.device).expand_as(keep)
        renamed.scatter_(2, keep, torch.where(valid, places, EMPTY))
        renamed[:, :, self.count] = EMPTY
        self.tables = [
            _compressed(replace(table, slots=renamed.gather(2, table.targets(self.count))))
            for table in self.tables
        ]
        self.count = kept
        self.changes += 1

    def encode(self, code: Code, first: Sequence[bool]) -> None:
        """Store everything that is at full precision in a code.

        The vectors of the sequences marked in ``first`` are their first ones, and fix their scale.
        """
        full = self.tables[0]
        if full.rows == 0:
            return
        vectors = self._full_precision.double()
        if isinstance(full.slots, Tensor):
            vectors = vectors.masked_fill((full.slots < 0)[..., None], 0.0)
        if any(first) and (scale := code.scale(vectors)) is not None:
            now = to_device([int(each) for each in first], vectors.device)[:, None, None, None]
            self.scale = scale if self.scale is None else torch.where(now > 0, scale, self.scale)
        if self.scale is not None:
            vectors = vectors / self.scale.double()
        rows = replace(full, vectors=Coded(code, code.encode(vectors), self.dimension))
        self.tables[0] = replace(
            full,
            slots=range(0),
            vectors=self._full_precision[:, :, :0].clone(),  # a view would keep them in memory
            counts=tuple(0 for _ in full.counts),
        )
        self._add(_compressed(rows, full.counts))
        self.changes += 1

    def quantize_tokens(
        self, slots: Chosen, bits: int, group: int, counts: tuple[int, ...] | None = None
    ) -> None:
        """Store entries in groups of ``group`` channels of one token.

        ``slots`` are `EMPTY` where a sequence has fewer; a range is that of the first rows at full
        precision, of every head. ``counts`` are entries per head of each sequence, if all are at
        full precision; without it the host has to wait for the device.
        """
        if _number(slots) == 0:
            return
        vectors = self._balanced(slots, all_wide=counts is not None)
        used = _used(slots) if counts is None else counts
        codes = quantise(vectors, bits, group)
        self._move(VectorTable(slots, codes, counts=used), counts is not None)

    def quantize_channels(
        self, slots: Chosen, bits: int, group: int, counts: tuple[int, ...]
    ) -> None:
        """Store entries at full precision in blocks of ``group`` consecutive slots of a channel."""
        if _number(slots) == 0:
            return
        blocks = self._balanced(slots, all_wide=True).unflatten(2, (-1, group)).transpose(-1, -2)
        codes = quantise(blocks, bits, group)
        self._move(VectorTable(slots, codes, by_channel=True, counts=counts), from_full=True)

    def copy(self) -> "Storage":
        """Return a storage of the same tables; behind the rows of each, others are written."""
        other = copy(self)
        other.tables = [table.clone() for table in self.tables]
        return other

    def map_rows(self, change: Change, order: Sequence[int]) -> None:
        """Apply one change of the batch axis; ``order`` is the same change as indices."""
        self.tables = [table.map_rows(change, order) for table in self.tables]
        self.balance = None if self.balance is None else change(self.balance)
        self.scale = None if self.scale is None else change(self.scale)
        self.changes += 1

    @property
    def dimension(self) -> int:
        """Channels of a head."""
        return self._full_precision.shape[-1]

    @property
    def oldest(self) -> Float[Tensor, "N G 1 d"]:
        """The first row at full precision."""
        return self._full_precision.narrow(2, 0, 1)

    @property
    def _full_precision(self) -> Float[Tensor, "N G rows d"]:
        vectors = self.tables[0].vectors
        assert isinstance(vectors, Tensor)
        return vectors

    def _balanced(self, slots: Chosen, all_wide: bool) -> Float[Tensor, "N G chosen d"]:
        """Return the vectors to be quantised, without any rounding."""
        if isinstance(slots, range):
            vectors = self._full_precision[:, :, : len(slots)]
        elif all_wide:
            full = self.tables[0]
            rows = torch.arange(full.rows, device=slots.device).expand(*slots.shape[:2], -1)
            row_of = in_slots([full], [rows], self.count)
            vectors = take(self._full_precision, row_of.gather(2, slots.clamp(min=0)))
        else:
            vectors = take(self.read(torch.float64), slots.clamp(min=0))
        return vectors if self.balance is None else vectors * self.balance[:, :, None].double()

    def _move(self, rows: VectorTable, from_full: bool) -> None:
        """Take entries out of the tables that hold them, and add the rows that they are now."""
        if isinstance(rows.slots, range):
            self.tables[0] = self.tables[0].behind(rows.rows)
        else:
            self._remove(rows, from_full)
        self._add(rows)
        self.changes += 1

    def _remove(self, rows: VectorTable, from_full: bool) -> None:
        targets = rows.targets(self.count)
        leaves = torch.zeros(
            (*targets.shape[:2], self.count + 1), dtype=torch.bool, device=targets.device
        )
        leaves.scatter_(2, targets, True)
        leaves[:, :, self.count] = False
        for number, table in enumerate(self.tables):
            if number > 0 and from_full:
                break
            gone = leaves.gather(2, table.targets(self.count))
            remaining = replace(table, slots=table.slots_of_heads.masked_fill(gone, EMPTY))
            left = None
            if from_full:
                left = tuple(a - b for a, b in zip(table.counts, rows.counts, strict=True))
            self.tables[number] = _compressed(remaining, left)

    def _add(self, rows: VectorTable) -> None:
        for number, table in enumerate(self.tables):
            if (table.code, table.by_channel) == (rows.code, rows.by_channel):
                self.tables[number] = table.extend(rows)
                return
        self.tables.append(rows)


def quantize_oldest(storages: Sequence[Storage], bits: int, group: int) -> None:
    """Do what `Storage.quantize_tokens` does to every head's first entry at full precision.

    The storages are of equal shape and device, and have a range of slots: one operation for all.
    """
    codes = quantise(torch.stack([each.oldest for each in storages]), bits, group)
    of_each = zip(*(part.unbind() for part in codes.parts), strict=True)
    for storage, parts in zip(storages, of_each, strict=True):
        full = storage.tables[0]
        rows = VectorTable(
            full.slots[:1], replace(codes, parts=parts), counts=(1,) * len(full.counts)
        )
        storage._move(rows, from_full=True)


class Partners:
    """Where the value of every row of the keys' tables lies; computed again when rows move.

    Where all slots are ranges, all layers share one answer, which is of no layer.
    """

    def __init__(self) -> None:
        self._found: list[Int[Tensor, "N G _"]] = []
        self._changes = (-1, -1)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return sum(rows.nbytes for rows in self._found)

    def of(self, keys: Storage, values: Storage) -> list[Int[Tensor, "N G _"]]:
        """Return `partners_of` the tables of two storages."""
        if ranges_of(keys.tables) and ranges_of(values.tables):
            self._found, self._changes = [], (-1, -1)
            return partners_of(keys.tables, values.tables, keys.count)
        changes = keys.changes, values.changes
        if self._changes != changes:
            self._found = partners_of(keys.tables, values.tables, keys.count)
            self._changes = changes
        known = self._found[0].shape[2]
        slots = keys.tables[0].slots_of_heads[:, :, known:]
        if new := slots.shape[2]:
            last = values.tables[0].rows
            rows = torch.arange(last - new, last, dtype=torch.int32, device=slots.device)
            rows = torch.where(slots < 0, EMPTY, rows)
            self._found[0] = torch.cat([self._found[0], rows], dim=2)
        return self._found


def _number(slots: Chosen) -> int:
    return len(slots) if isinstance(slots, range) else slots.shape[2]


def _used(slots: Int[Tensor, "N G rows"] | range) -> tuple[int, ...]:
    assert isinstance(slots, Tensor), "of a range the caller knows it"
    return tuple((slots[:, 0] >= 0).sum(dim=-1).tolist())


def _compressed(table: VectorTable, counts: tuple[int, ...] | None = None) -> VectorTable:
    """Drop rows that belong to no entry, until the fullest sequence has none of them."""
    counts = _used(table.slots) if counts is None else counts
    longest = max(counts)
    if longest == table.rows:
        return replace(table, counts=counts)
    order = torch.argsort((table.slots_of_heads < 0).to(torch.int8), dim=2, stable=True)
    return table.take(order[:, :, :longest], counts)
