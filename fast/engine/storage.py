"""Keys or values of mixed precision: tables that are really packed, each knowing its slots."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvlab.fast.engine.twins import Twin
from kvlab.fast.kernels.codes import Coded, Parts, Scale
from kvlab.fast.kernels.common import to_device
from kvlab.fast.kernels.quantise import quantise, take
from kvlab.fast.kernels.vector_tables import VectorTable, in_slots, partners_of
from kvlab.reference import codes as reference
from kvlab.reference.quantization import FULL_BITS

EMPTY = -1
"""Slot of a row that belongs to no entry."""

Spec = TypeVar("Spec", bound=reference.Code)


class Code(Twin[Spec], ABC):
    """A way to store a vector in few bits per element."""

    @property
    def bits(self) -> int:
        """Bits per element, without scales and norms."""
        return self.spec.bits

    def scale(self, vectors: Float[Tensor, "N G n d"]) -> Scale | None:
        """Return the scale that the first block of a layer fixes; None if the code has none."""
        return None

    @abstractmethod
    def encode(self, x: Float[Tensor, "*rows d"]) -> Parts:
        """Return what is stored of vectors; the caller has divided them by the scale."""

    @abstractmethod
    def decode(self, parts: Parts, d: int, dtype: torch.dtype) -> Float[Tensor, "*rows d"]:
        """Return the vectors that attention reads, still divided by the scale."""


class Storage:
    """The vectors ``[N, G, n, d]`` of one layer, each slot in one of several tables.

    ``balance`` multiplies a key before it is quantised and divides it after it is read (MiKV).
    ``scale`` divides a vector before a code stores it and multiplies it after it is read.
    """

    def __init__(self, like: Float[Tensor, "N G m d"]) -> None:
        nowhere = torch.empty((*like.shape[:2], 0), dtype=torch.int64, device=like.device)
        self.tables = [VectorTable(nowhere, like[:, :, :0], counts=(0,) * len(like))]
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
        return factors + sum(t.overhead_bytes + t.slots.nbytes for t in self.tables)

    def bits(self) -> Int[Tensor, "N G n"]:
        """Bits per element of each slot, without scales and zero points."""
        bits = [torch.full_like(table.slots, table.bits) for table in self.tables]
        return in_slots(self.tables, bits, self.count, FULL_BITS)

    def read(self, dtype: torch.dtype) -> Float[Tensor, "N G n d"]:
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
        N, G, m, _ = vectors.shape
        slots = torch.arange(self.count, self.count + m, device=vectors.device)
        slots = torch.where(used[:, None], slots, EMPTY).expand(N, G, m)
        self._add(VectorTable(slots, vectors, counts=counts))
        self.count += m

    def take(self, keep: Int[Tensor, "N G kept"], valid: Bool[Tensor, "N G kept"]) -> None:
        """Keep only these slots; the others are freed. Waits for the device."""
        kept = keep.shape[2]
        N, G = keep.shape[:2]
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
        vectors = vectors.masked_fill((full.slots < 0)[..., None], 0.0)
        if any(first) and (scale := code.scale(vectors)) is not None:
            now = to_device([int(each) for each in first], vectors.device)[:, None, None, None]
            self.scale = scale if self.scale is None else torch.where(now > 0, scale, self.scale)
        if self.scale is not None:
            vectors = vectors / self.scale.double()
        rows = replace(full, vectors=Coded(code, code.encode(vectors), self.dimension))
        self.tables[0] = replace(
            full,
            slots=full.slots[:, :, :0].clone(),  # a view would keep the vectors in memory
            vectors=self._full_precision[:, :, :0].clone(),
            counts=tuple(0 for _ in full.counts),
        )
        self._add(_compressed(rows, full.counts))
        self.changes += 1

    def quantize_tokens(
        self,
        slots: Int[Tensor, "N G chosen"],
        bits: int,
        group: int,
        counts: tuple[int, ...] | None = None,
    ) -> None:
        """Store entries in groups of ``group`` channels of one token.

        ``slots`` are `EMPTY` where a sequence has fewer. ``counts`` are entries per head of each
        sequence, if all are at full precision; without it the host has to wait for the device.
        """
        if slots.shape[2] == 0:
            return
        vectors = self._balanced(slots, all_wide=counts is not None)
        used = _used(slots) if counts is None else counts
        codes = quantise(vectors, bits, group)
        self._move(VectorTable(slots, codes, counts=used), counts is not None)

    def quantize_channels(
        self,
        slots: Int[Tensor, "N G chosen"],
        bits: int,
        group: int,
        counts: tuple[int, ...],
    ) -> None:
        """Store entries at full precision in blocks of ``group`` consecutive slots of a channel."""
        if slots.shape[2] == 0:
            return
        blocks = self._balanced(slots, all_wide=True).unflatten(2, (-1, group)).transpose(-1, -2)
        codes = quantise(blocks, bits, group)
        self._move(VectorTable(slots, codes, by_channel=True, counts=counts), from_full=True)

    def copy(self) -> "Storage":
        """Return a storage of the same tables; behind the first one's rows, others are written."""
        other = copy(self)
        first = replace(self.tables[0], vectors=self._full_precision.clone())
        other.tables = [first, *self.tables[1:]]
        return other

    def map_rows(self, change: Callable[[Tensor], Tensor], order: Sequence[int]) -> None:
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
    def _full_precision(self) -> Float[Tensor, "N G rows d"]:
        vectors = self.tables[0].vectors
        assert isinstance(vectors, Tensor)
        return vectors

    def _balanced(
        self, slots: Int[Tensor, "N G chosen"], all_wide: bool
    ) -> Float[Tensor, "N G chosen d"]:
        """Return the vectors to be quantised, as float32 if it holds them exactly, else float64."""
        stored = self._full_precision.dtype
        exact = all_wide and self.balance is None and stored != torch.float64
        dtype = torch.float32 if exact else torch.float64
        slots = slots.clamp(min=0)
        if all_wide:
            full = self.tables[0]
            rows = torch.arange(full.rows, device=slots.device).expand_as(full.slots)
            row_of = in_slots([full], [rows], self.count)
            vectors = take(self._full_precision, row_of.gather(2, slots)).to(dtype)
        else:
            vectors = take(self.read(dtype), slots)
        return vectors if self.balance is None else vectors * self.balance[:, :, None].double()

    def _move(self, rows: VectorTable, from_full: bool) -> None:
        leaves = torch.zeros(
            (*rows.slots.shape[:2], self.count + 1), dtype=torch.bool, device=rows.slots.device
        )
        leaves.scatter_(2, rows.targets(self.count), True)
        leaves[:, :, self.count] = False
        for number, table in enumerate(self.tables):
            if number > 0 and from_full:
                break
            gone = leaves.gather(2, table.targets(self.count))
            remaining = replace(table, slots=torch.where(gone, EMPTY, table.slots))
            left = None
            if from_full:
                left = tuple(a - b for a, b in zip(table.counts, rows.counts, strict=True))
            self.tables[number] = _compressed(remaining, left)
        self._add(rows)
        self.changes += 1

    def _add(self, rows: VectorTable) -> None:
        for number, table in enumerate(self.tables):
            if (table.code, table.by_channel) == (rows.code, rows.by_channel):
                self.tables[number] = table.extend(rows)
                return
        self.tables.append(rows)


class Partners:
    """Where the value of every row of the keys' tables lies; computed again when rows move."""

    def __init__(self) -> None:
        self._found: list[Int[Tensor, "N G _"]] = []
        self._changes = (-1, -1)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return sum(rows.nbytes for rows in self._found)

    def of(self, keys: Storage, values: Storage) -> list[Int[Tensor, "N G _"]]:
        """Return `partners_of` the tables of two storages."""
        changes = keys.changes, values.changes
        if self._changes != changes:
            self._found = partners_of(keys.tables, values.tables, keys.count)
            self._changes = changes
        known = self._found[0].shape[2]
        slots = keys.tables[0].slots[:, :, known:]
        if new := slots.shape[2]:
            last = values.tables[0].rows
            rows = torch.arange(last - new, last, dtype=torch.int32, device=slots.device)
            rows = torch.where(slots < 0, EMPTY, rows)
            self._found[0] = torch.cat([self._found[0], rows], dim=2)
        return self._found


def _used(slots: Int[Tensor, "N G rows"]) -> tuple[int, ...]:
    return tuple((slots[:, 0] >= 0).sum(dim=-1).tolist())


def _compressed(table: VectorTable, counts: tuple[int, ...] | None = None) -> VectorTable:
    """Drop rows that belong to no entry, until the fullest sequence has none of them."""
    counts = _used(table.slots) if counts is None else counts
    longest = max(counts)
    if longest == table.slots.shape[2]:
        return replace(table, counts=counts)
    order = torch.argsort((table.slots < 0).to(torch.int8), dim=2, stable=True)
    return table.take(order[:, :, :longest], counts)
