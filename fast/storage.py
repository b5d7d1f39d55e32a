"""Keys or values of mixed precision: tables that are really packed, each knowing its slots."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.kernels.coded import quantise
from kvlab.fast.kernels.coded_table import CodedTable, partners_of
from kvlab.fast.padding import last_in_use
from kvlab.fast.quantization import Quantized, take
from kvlab.reference.quantization import FULL_BITS

EMPTY = -1
"""Slot of a row that belongs to no entry: sequences of a batch may fill tables unequally."""


@dataclass(frozen=True)
class Rows(ABC):
    """Vectors that share one storage format, and the slot of the cache that each belongs to."""

    slots: Int[Tensor, "N G rows"]
    counts: tuple[int, ...]
    """Rows in use per head, for each sequence."""

    @property
    @abstractmethod
    def format(self) -> tuple[str, int, int]:
        """Kind, bits and group size: tables of equal format can be joined."""

    @property
    def bits(self) -> int:
        """Bits per element without scales and zero points."""
        return self.format[1]

    @property
    @abstractmethod
    def payload_bytes(self) -> int:
        """Bytes of the elements."""

    @property
    @abstractmethod
    def overhead_bytes(self) -> int:
        """Bytes of scales and zero points."""

    @abstractmethod
    def read(self, dtype: torch.dtype) -> Float[Tensor, "N G rows d"]:
        """Return what attention reads."""

    @abstractmethod
    def map(self, change: Callable[[Tensor], Tensor]) -> "Rows":
        """Apply one change of the batch axis."""

    @abstractmethod
    def take(self, rows: Int[Tensor, "N G kept"], counts: tuple[int, ...]) -> "Rows":
        """Return the table of these rows alone, in this order."""

    @abstractmethod
    def extend(self, other: "Rows") -> "Rows":
        """Return this table followed by another of the same format."""

    def _joined(self, other: "Rows") -> tuple[Tensor, tuple[int, ...]]:
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return torch.cat([self.slots, other.slots], dim=2), counts


@dataclass(frozen=True)
class FullRows(Rows):
    """Vectors as the model gave them."""

    vectors: Float[Tensor, "N G rows d"]

    @property
    def format(self) -> tuple[str, int, int]:
        """Full precision."""
        return "full", FULL_BITS, 0

    @property
    def payload_bytes(self) -> int:
        """Bytes of the vectors."""
        return self.vectors.nbytes

    @property
    def overhead_bytes(self) -> int:
        """None."""
        return 0

    def read(self, dtype: torch.dtype) -> Float[Tensor, "N G rows d"]:
        """Return the vectors."""
        return self.vectors.to(dtype)

    def map(self, change: Callable[[Tensor], Tensor]) -> "FullRows":
        """Apply one change of the batch axis."""
        return replace(self, slots=change(self.slots), vectors=change(self.vectors))

    def take(self, rows: Int[Tensor, "N G kept"], counts: tuple[int, ...]) -> "FullRows":
        """Return these rows."""
        return FullRows(self.slots.gather(2, rows), counts, take(self.vectors, rows))

    def extend(self, other: "FullRows") -> "FullRows":  # type: ignore[override]
        """Append rows."""
        vectors = torch.cat([self.vectors, other.vectors], dim=2)
        return FullRows(*self._joined(other), vectors)


@dataclass(frozen=True)
class TokenRows(Rows):
    """Vectors quantised one by one, in groups of consecutive channels."""

    quantized: Quantized

    @property
    def format(self) -> tuple[str, int, int]:
        """Per-token groups."""
        return "token", self.quantized.bits, self.quantized.group

    @property
    def payload_bytes(self) -> int:
        """Bytes of the codes."""
        return self.quantized.code_bytes

    @property
    def overhead_bytes(self) -> int:
        """Bytes of scales and zero points."""
        return self.quantized.overhead_bytes

    def read(self, dtype: torch.dtype) -> Float[Tensor, "N G rows d"]:
        """Dequantise."""
        return self.quantized.dequantize(dtype)

    def map(self, change: Callable[[Tensor], Tensor]) -> "TokenRows":
        """Apply one change of the batch axis."""
        return replace(self, slots=change(self.slots), quantized=self.quantized.map(change))

    def take(self, rows: Int[Tensor, "N G kept"], counts: tuple[int, ...]) -> "TokenRows":
        """Return these rows, their codes untouched."""
        return TokenRows(self.slots.gather(2, rows), counts, self.quantized.take(rows))

    def extend(self, other: "TokenRows") -> "TokenRows":  # type: ignore[override]
        """Append rows."""
        return TokenRows(*self._joined(other), self.quantized.extend(other.quantized))


@dataclass(frozen=True)
class ChannelRows(TokenRows):
    """Vectors quantised in blocks of consecutive tokens, one scale per channel of a block.

    Codes are ``[N, G, blocks, d, bytes]``, along the last axis the tokens of one block.
    """

    @property
    def format(self) -> tuple[str, int, int]:
        """Per-channel groups."""
        return "channel", self.quantized.bits, self.quantized.group

    def read(self, dtype: torch.dtype) -> Float[Tensor, "N G rows d"]:
        """Dequantise."""
        return self.quantized.dequantize(dtype).transpose(-1, -2).flatten(2, 3)

    def take(self, rows: Int[Tensor, "N G kept"], counts: tuple[int, ...]) -> "ChannelRows":
        """Refuse: no method evicts from per-channel blocks.

        Raises:
            ValueError: always.
        """
        raise ValueError("a per-channel quantised block cannot lose single tokens")

    def extend(self, other: "ChannelRows") -> "ChannelRows":  # type: ignore[override]
        """Append blocks."""
        return ChannelRows(*self._joined(other), self.quantized.extend(other.quantized))


class Storage:
    """The vectors ``[N, G, n, d]`` of one layer, each slot in one of several tables.

    ``balance`` multiplies a key before it is quantised and divides it after it is read (MiKV).
    """

    def __init__(self, like: Float[Tensor, "N G m d"]) -> None:
        nowhere = torch.empty((*like.shape[:2], 0), dtype=torch.int64, device=like.device)
        self.tables: list[Rows] = [FullRows(nowhere, (0,) * len(like), like[:, :, :0])]
        self.balance: Float[Tensor, "N G d"] | None = None
        self.count = 0
        self.changes = 0
        """How often rows have moved; new ones at the end do not count."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of all elements."""
        return sum(table.payload_bytes for table in self.tables)

    @property
    def overhead_bytes(self) -> int:
        """Bytes of scales, zero points, balance factors and slot numbers."""
        balance = 0 if self.balance is None else self.balance.nbytes
        return balance + sum(t.overhead_bytes + t.slots.nbytes for t in self.tables)

    def bits(self) -> Int[Tensor, "N G n"]:
        """Bits per element of each slot, without scales and zero points."""
        full = self.tables[0].slots
        bits = torch.full((*full.shape[:2], self.count + 1), FULL_BITS, device=full.device)
        for table in self.tables[1:]:
            bits.scatter_(2, self._targets(table), table.bits)
        return bits[:, :, : self.count]

    def read(self, dtype: torch.dtype) -> Float[Tensor, "N G n d"]:
        """Return what attention reads; empty slots hold zeros."""
        N, G, d = *self.tables[0].slots.shape[:2], self.dimension
        device = self.tables[0].slots.device
        vectors = torch.zeros((N, G, self.count + 1, d), dtype=dtype, device=device)
        for table in self.tables:
            rows = table.read(dtype)
            if self.balance is not None and table.bits < FULL_BITS:
                rows = rows / self.balance[:, :, None].to(dtype)
            vectors.scatter_(2, self._targets(table)[..., None].expand_as(rows), rows)
        return vectors[:, :, : self.count]

    def coded(self) -> list[CodedTable] | None:
        """Return the tables as attention kernels read them; None if some have to be rewritten.

        Those are balanced keys, and codes that do not fill bytes. The first table holds what is at
        full precision; any may be empty.
        """
        if self.balance is not None or any(FULL_BITS % table.bits for table in self.tables):
            return None
        found = []
        for table in self.tables:
            if isinstance(table, FullRows):
                found.append(CodedTable(table.slots, table.vectors))
            elif isinstance(table, TokenRows):
                coded, by_channel = table.quantized, isinstance(table, ChannelRows)
                if by_channel and coded.group * coded.bits % 8:
                    return None
                found.append(CodedTable(table.slots, coded, by_channel))
        return found

    def append(self, vectors: Float[Tensor, "N G m d"], present: Sequence[int]) -> None:
        """Add slots at full precision; of the new ones each sequence fills the last ``present``."""
        N, G, m, _ = vectors.shape
        used = last_in_use(m, present, vectors.device)
        slots = torch.arange(self.count, self.count + m, device=vectors.device)
        slots = torch.where(used, slots, EMPTY).expand(N, G, m)
        self._add(FullRows(slots, tuple(present), vectors))
        self.count += m

    def take(self, keep: Int[Tensor, "N G kept"], valid: Tensor) -> None:
        """Keep these slots alone; the others leave memory. Waits for the device."""
        kept = keep.shape[2]
        N, G = keep.shape[:2]
        renamed = torch.full((N, G, self.count + 1), EMPTY, device=keep.device)
        places = torch.arange(kept, device=keep.device).expand_as(keep)
        renamed.scatter_(2, keep, torch.where(valid, places, EMPTY))
        renamed[:, :, self.count] = EMPTY
        self.tables = [
            _compressed(replace(table, slots=renamed.gather(2, self._targets(table))))
            for table in self.tables
        ]
        self.count = kept
        self.changes += 1

    def quantize_tokens(
        self,
        slots: Int[Tensor, "N G chosen"],
        bits: int,
        group: int,
        counts: tuple[int, ...] | None = None,
    ) -> None:
        """Store entries in groups of ``group`` channels of one token.

        Args:
            slots: the entries; `EMPTY` where a sequence has fewer.
            bits: width of a code.
            group: channels that share a scale.
            counts: entries per head of each sequence, if all are at full precision; without it
                the host has to wait for the device.
        """
        if slots.shape[2] == 0:
            return
        vectors = self._balanced(slots, all_wide=counts is not None)
        used = _used(slots) if counts is None else counts
        self._move(TokenRows(slots, used, quantise(vectors, bits, group)), counts is not None)

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
        self._move(ChannelRows(slots, counts, quantise(blocks, bits, group)), from_full=True)

    def map_rows(self, change: Callable[[Tensor], Tensor], order: Sequence[int]) -> None:
        """Apply one change of the batch axis; ``order`` is the same change as indices."""
        self.tables = [
            replace(table.map(change), counts=tuple(table.counts[i] for i in order))
            for table in self.tables
        ]
        self.balance = None if self.balance is None else change(self.balance)
        self.changes += 1

    @property
    def dimension(self) -> int:
        """Channels of a head."""
        full = self.tables[0]
        assert isinstance(full, FullRows)
        return full.vectors.shape[-1]

    def _targets(self, table: Rows) -> Int[Tensor, "N G rows"]:
        """Slots, with one beyond the last for rows that belong to no entry."""
        return torch.where(table.slots < 0, self.count, table.slots)

    def _balanced(
        self, slots: Int[Tensor, "N G chosen"], all_wide: bool
    ) -> Float[Tensor, "N G chosen d"]:
        """Return the vectors to be quantised; float32 where that is what is stored, or holds it."""
        full = self.tables[0]
        assert isinstance(full, FullRows)
        exact = all_wide and self.balance is None and full.vectors.dtype != torch.float64
        dtype = torch.float32 if exact else torch.float64
        vectors = take(self.read(dtype), slots.clamp(min=0))
        return vectors if self.balance is None else vectors * self.balance[:, :, None].double()

    def _move(self, rows: Rows, from_full: bool) -> None:
        leaves = torch.zeros(
            (*rows.slots.shape[:2], self.count + 1), dtype=torch.bool, device=rows.slots.device
        )
        leaves.scatter_(2, self._targets(rows), True)
        leaves[:, :, self.count] = False
        for number, table in enumerate(self.tables):
            if number > 0 and from_full:
                break
            gone = leaves.gather(2, self._targets(table))
            remaining = replace(table, slots=torch.where(gone, EMPTY, table.slots))
            left = None
            if from_full:
                left = tuple(a - b for a, b in zip(table.counts, rows.counts, strict=True))
            self.tables[number] = _compressed(remaining, left)
        self._add(rows)
        self.changes += 1

    def _add(self, rows: Rows) -> None:
        for number, table in enumerate(self.tables):
            if table.format == rows.format:
                self.tables[number] = table.extend(rows)
                return
        self.tables.append(rows)


class Partners:
    """For every row of the keys' tables, where its entry's value lies; anew when rows move."""

    def __init__(self) -> None:
        self._found: list[Int[Tensor, "N G _"]] = []
        self._changes = (-1, -1)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return sum(rows.nbytes for rows in self._found)

    def of(
        self,
        keys: Storage,
        values: Storage,
        key_tables: Sequence[CodedTable],
        value_tables: Sequence[CodedTable],
    ) -> list[Int[Tensor, "N G _"]]:
        """Return `partners_of` these tables, which are what the storages call `Storage.coded`."""
        changes = keys.changes, values.changes
        if self._changes != changes:
            self._found = partners_of(key_tables, value_tables, keys.count)
            self._changes = changes
        known = self._found[0].shape[2]
        slots = key_tables[0].slots[:, :, known:]
        if new := slots.shape[2]:
            last = value_tables[0].rows
            rows = torch.arange(last - new, last, dtype=torch.int32, device=slots.device)
            rows = torch.where(slots < 0, EMPTY, rows)
            self._found[0] = torch.cat([self._found[0], rows], dim=2)
        return self._found


def _used(slots: Int[Tensor, "N G rows"]) -> tuple[int, ...]:
    return tuple((slots[:, 0] >= 0).sum(dim=-1).tolist())


def _compressed(table: Rows, counts: tuple[int, ...] | None = None) -> Rows:
    """Drop the rows that belong to no entry, as far as all sequences can do without them."""
    counts = _used(table.slots) if counts is None else counts
    longest = max(counts)
    if longest == table.slots.shape[2]:
        return replace(table, counts=counts)
    order = torch.argsort((table.slots < 0).to(torch.int8), dim=2, stable=True)
    return table.take(order[:, :, :longest], counts)
