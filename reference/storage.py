"""Where keys or values live: each vector at its own precision, in tables that are really packed."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from kvlab.reference.notation import Array
from kvlab.reference.quantization import FULL_BITS, Quantized, quantize


class Rows(ABC):
    """A table of vectors that share one storage format."""

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
    def count(self) -> int:
        """Number of vectors."""

    @property
    @abstractmethod
    def payload_bytes(self) -> int:
        """Bytes of the elements."""

    @property
    @abstractmethod
    def overhead_bytes(self) -> int:
        """Bytes of scales and zero points."""

    @abstractmethod
    def read(self) -> Float[Array, "rows d"]:
        """Return what attention reads."""

    @abstractmethod
    def take(self, rows: Int[Array, " kept"]) -> "Rows":
        """Return the table of these rows alone, in this order."""

    @abstractmethod
    def extend(self, other: Any) -> "Rows":
        """Return this table followed by another of the same format."""


@dataclass(frozen=True)
class FullRows(Rows):
    """Vectors as they came, counted at 16 bits per element."""

    vectors: Float[Array, "rows d"]

    @property
    def format(self) -> tuple[str, int, int]:
        """Full precision."""
        return "full", FULL_BITS, 0

    @property
    def count(self) -> int:
        """Number of vectors."""
        return len(self.vectors)

    @property
    def payload_bytes(self) -> int:
        """Bytes at 16 bits per element."""
        return self.vectors.size * FULL_BITS // 8

    @property
    def overhead_bytes(self) -> int:
        """None."""
        return 0

    def read(self) -> Float[Array, "rows d"]:
        """Return the vectors."""
        return self.vectors

    def take(self, rows: Int[Array, " kept"]) -> "FullRows":
        """Return these rows."""
        return FullRows(self.vectors[rows])

    def extend(self, other: "FullRows") -> "FullRows":
        """Append rows."""
        return FullRows(np.concatenate([self.vectors, other.vectors]))


@dataclass(frozen=True)
class CodedRows(Rows):
    """Vectors stored as packed codes."""

    quantized: Quantized

    @property
    def payload_bytes(self) -> int:
        """Bytes of the codes."""
        return self.quantized.code_bytes

    @property
    def overhead_bytes(self) -> int:
        """Bytes of scales and zero points."""
        return self.quantized.overhead_bytes


@dataclass(frozen=True)
class TokenRows(CodedRows):
    """Vectors quantised one by one, in groups of consecutive channels."""

    @property
    def format(self) -> tuple[str, int, int]:
        """Per-token groups."""
        return "token", self.quantized.bits, self.quantized.group

    @property
    def count(self) -> int:
        """Number of vectors."""
        return len(self.quantized.codes)

    def read(self) -> Float[Array, "rows d"]:
        """Dequantise."""
        return self.quantized.dequantize()

    def take(self, rows: Int[Array, " kept"]) -> "TokenRows":
        """Return these rows, their codes untouched."""
        return TokenRows(self.quantized.take(rows))

    def extend(self, other: "TokenRows") -> "TokenRows":
        """Append rows."""
        return TokenRows(self.quantized.extend(other.quantized))


@dataclass(frozen=True)
class ChannelRows(CodedRows):
    """Vectors quantised in blocks of consecutive tokens, one scale per channel of a block.

    Codes are ``[blocks, d, bytes]``, along the last axis the tokens of one block. A block holds its
    tokens together: it can be kept or dropped, not split.
    """

    @property
    def format(self) -> tuple[str, int, int]:
        """Per-channel groups."""
        return "channel", self.quantized.bits, self.quantized.group

    @property
    def count(self) -> int:
        """Number of vectors."""
        return len(self.quantized.codes) * self.quantized.length

    def read(self) -> Float[Array, "rows d"]:
        """Dequantise."""
        by_channel = self.quantized.dequantize()
        return by_channel.swapaxes(-1, -2).reshape(self.count, -1)

    def take(self, rows: Int[Array, " kept"]) -> "ChannelRows":
        """Return whole blocks.

        Raises:
            ValueError: if ``rows`` splits a block.
        """
        tokens = self.quantized.length
        first = rows[::tokens]
        whole = (first[:, None] + np.arange(tokens)).reshape(-1)
        if (first % tokens).any() or not np.array_equal(whole, rows):
            raise ValueError("a per-channel quantised block cannot lose single tokens")
        return ChannelRows(self.quantized.take(first // tokens))

    def extend(self, other: "ChannelRows") -> "ChannelRows":
        """Append blocks."""
        return ChannelRows(self.quantized.extend(other.quantized))


@dataclass(frozen=True)
class Storage:
    """The vectors ``[G, n, d]`` of one layer; entry (g, j) is row ``row[g, j]`` of one table.

    ``balance`` multiplies a key before it is quantised and divides it after it is read (MiKV); the
    product with a query is unchanged in exact arithmetic.
    """

    tables: tuple[Rows, ...]
    table: Int[Array, "G n"]
    row: Int[Array, "G n"]
    balance: Float[Array, "G d"] | None = None

    @classmethod
    def empty(cls, kv_heads: int, d: int) -> "Storage":
        """Return a storage without entries."""
        nowhere = np.zeros((kv_heads, 0), dtype=np.int64)
        return cls((FullRows(np.zeros((0, d))),), nowhere, nowhere)

    @property
    def bits(self) -> Int[Array, "G n"]:
        """Bits per element of each entry, without scales and zero points."""
        return np.array([table.bits for table in self.tables])[self.table]

    @property
    def payload_bytes(self) -> int:
        """Bytes of all elements."""
        return sum(table.payload_bytes for table in self.tables)

    @property
    def overhead_bytes(self) -> int:
        """Bytes of scales, zero points and balance factors."""
        balance = 0 if self.balance is None else self.balance.size * FULL_BITS // 8
        return balance + sum(table.overhead_bytes for table in self.tables)

    def read(self) -> Float[Array, "G n d"]:
        """Return what attention reads."""
        d = self.tables[0].read().shape[-1]
        vectors = np.empty((*self.table.shape, d))
        for number, table in enumerate(self.tables):
            here = self.table == number
            if here.any():
                vectors[here] = table.read()[self.row[here]]
        if self.balance is not None:
            balanced = self.bits < FULL_BITS
            vectors = np.where(balanced[..., None], vectors / self.balance[:, None], vectors)
        return vectors

    def append(self, vectors: Float[Array, "G m d"]) -> "Storage":
        """Add entries at full precision at the end of every head."""
        G, m, d = vectors.shape
        new = self._add(FullRows(vectors.reshape(G * m, d)))
        rows = new.tables[0].count - G * m + np.arange(G * m).reshape(G, m)
        return replace(
            new,
            table=np.concatenate([self.table, np.zeros((G, m), dtype=np.int64)], axis=1),
            row=np.concatenate([self.row, rows], axis=1),
        )

    def take(self, keep: Int[Array, "G kept"]) -> "Storage":
        """Return the storage of these entries alone; the others leave memory."""
        table = np.take_along_axis(self.table, keep, axis=1)
        row = np.take_along_axis(self.row, keep, axis=1)
        return replace(self, table=table, row=row)._drop_unused()

    def quantize_tokens(self, entries: Bool[Array, "G n"], bits: int, group: int) -> "Storage":
        """Store the chosen entries in groups of ``group`` channels of one token."""
        if not entries.any():
            return self
        return self._move(entries, TokenRows(quantize(self._balanced()[entries], bits, group)))

    def quantize_channels(self, entries: Bool[Array, "G n"], bits: int, group: int) -> "Storage":
        """Store the chosen entries in blocks of ``group`` consecutive tokens of one channel.

        Raises:
            ValueError: if a head's chosen entries do not fill whole blocks.
        """
        if not entries.any():
            return self
        if (entries.sum(axis=1) % group).any():
            raise ValueError(f"entries to quantise per head must be a multiple of group = {group}")
        chosen = self._balanced()[entries]
        by_channel = chosen.reshape(-1, group, chosen.shape[-1]).swapaxes(-1, -2)
        return self._move(entries, ChannelRows(quantize(by_channel, bits, group)))

    def _balanced(self) -> Float[Array, "G n d"]:
        vectors = self.read()
        return vectors if self.balance is None else vectors * self.balance[:, None]

    def _move(self, entries: Bool[Array, "G n"], rows: Rows) -> "Storage":
        new = self._add(rows)
        number = [table.format for table in new.tables].index(rows.format)
        table, row = self.table.copy(), self.row.copy()
        table[entries] = number
        row[entries] = new.tables[number].count - rows.count + np.arange(rows.count)
        return replace(new, table=table, row=row)._drop_unused()

    def _add(self, rows: Rows) -> "Storage":
        formats = [table.format for table in self.tables]
        if rows.format not in formats:
            return replace(self, tables=(*self.tables, rows))
        number = formats.index(rows.format)
        joined = self.tables[number].extend(rows)
        return replace(self, tables=(*self.tables[:number], joined, *self.tables[number + 1 :]))

    def _drop_unused(self) -> "Storage":
        row, tables = self.row.copy(), []
        for number, table in enumerate(self.tables):
            here = self.table == number
            used, row[here] = np.unique(self.row[here], return_inverse=True)
            tables.append(table if len(used) == table.count else table.take(used))
        return replace(self, tables=tuple(tables), row=row)
