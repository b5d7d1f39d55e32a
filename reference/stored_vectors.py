"""Where keys or values live: each vector at its own precision, codes in tables really packed."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from kvlab.reference.notation import Array
from kvlab.reference.quantization import FULL_BITS, Quantized, quantize

FULL = -1
"""In place of a table's number: the vector is stored at full precision."""


@dataclass(frozen=True)
class CodedRows(ABC):
    """A table of vectors that are stored as packed codes of one format."""

    quantized: Quantized

    @property
    def format(self) -> tuple[type, int, int]:
        """Kind, bits and group size: tables of equal format can be joined."""
        return type(self), self.quantized.bits, self.quantized.group

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of vectors."""

    @abstractmethod
    def read(self) -> Float[Array, "rows d"]:
        """Dequantise the vectors."""

    @abstractmethod
    def take(self, rows: Int[Array, " kept"]) -> "CodedRows":
        """Return the table of these rows alone, in this order, their codes untouched."""

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and zero points."""
        return self.quantized.code_bytes + self.quantized.overhead_bytes

    def extend(self, other: "CodedRows") -> "CodedRows":
        """Return this table followed by another of the same format."""
        return type(self)(self.quantized.extend(other.quantized))


class TokenRows(CodedRows):
    """Vectors quantised one by one, in groups of consecutive channels."""

    @property
    def count(self) -> int:
        return len(self.quantized.codes)

    def read(self) -> Float[Array, "rows d"]:
        return self.quantized.dequantize()

    def take(self, rows: Int[Array, " kept"]) -> "TokenRows":
        return TokenRows(self.quantized.take(rows))


class ChannelRows(CodedRows):
    """Vectors quantised in blocks of consecutive tokens, one scale per channel of a block.

    Codes are ``[blocks, d, bytes]``, along the last axis the tokens of one block. A block holds its
    tokens together: it can be kept or dropped, not split.
    """

    @property
    def count(self) -> int:
        return len(self.quantized.codes) * self.quantized.length

    def read(self) -> Float[Array, "rows d"]:
        by_channel = self.quantized.dequantize()
        return by_channel.swapaxes(-1, -2).reshape(self.count, -1)

    def take(self, rows: Int[Array, " kept"]) -> "ChannelRows":
        """Return the table of these rows alone.

        Raises:
            ValueError: if ``rows`` splits a block.
        """
        tokens = self.quantized.length
        first = rows[::tokens]
        whole = (first[:, None] + np.arange(tokens)).reshape(-1)
        if (first % tokens).any() or not np.array_equal(whole, rows):
            raise ValueError("a per-channel quantised block cannot lose single tokens")
        return ChannelRows(self.quantized.take(first // tokens))


@dataclass(frozen=True)
class StoredVectors:
    """The vectors ``[G, n, d]`` of one layer; entry (g, j) is row ``row[g, j]`` of its table.

    ``balance`` multiplies a key before it is quantised and divides it after it is read (MiKV); the
    product with a query is unchanged in exact arithmetic.
    """

    vectors: Float[Array, "G n d"]
    """What attention reads: each vector as it came, or what its codes say."""
    table: Int[Array, "G n"]
    """Index into ``tables``; `FULL` for entries at full precision."""
    row: Int[Array, "G n"]
    tables: tuple[CodedRows, ...] = ()
    balance: Float[Array, "G d"] | None = None

    @classmethod
    def empty(cls, kv_heads: int, d: int) -> "StoredVectors":
        """Return the storage of no entries."""
        nowhere = np.zeros((kv_heads, 0), dtype=np.int64)
        return cls(np.zeros((kv_heads, 0, d)), nowhere, nowhere)

    @property
    def bits(self) -> Int[Array, "G n"]:
        """Bits per element of each entry, without scales and zero points."""
        return self._of_table([table.quantized.bits for table in self.tables])

    @property
    def bits_with_scales(self) -> Float[Array, "G n"]:
        """Bits per element of each entry, its share of scales and zero points included."""
        d = self.vectors.shape[-1]
        per_table = [8 * table.nbytes / (table.count * d) for table in self.tables]
        return self._of_table(per_table).astype(float)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all elements; an element at full precision counts 16 bits."""
        elements = int((self.table == FULL).sum()) * self.vectors.shape[-1]
        coded = sum(table.quantized.code_bytes for table in self.tables)
        return coded + elements * FULL_BITS // 8

    @property
    def overhead_bytes(self) -> int:
        """Bytes of scales, zero points and balance factors."""
        balance = 0 if self.balance is None else self.balance.size * FULL_BITS // 8
        return balance + sum(table.quantized.overhead_bytes for table in self.tables)

    def append(self, vectors: Float[Array, "G m d"]) -> "StoredVectors":
        """Add entries at full precision at the end of every head."""
        nowhere = np.full(vectors.shape[:2], FULL)
        return StoredVectors(
            np.concatenate([self.vectors, vectors], axis=1),
            np.concatenate([self.table, nowhere], axis=1),
            np.concatenate([self.row, nowhere], axis=1),
            self.tables,
            self.balance,
        )

    def take(self, keep: Int[Array, "G kept"]) -> "StoredVectors":
        """Return the storage of these entries alone; the others leave memory."""
        kept = np.arange(len(keep))[:, None], keep
        vectors, table, row = self.vectors[kept], self.table[kept], self.row[kept]
        return StoredVectors(vectors, table, row, self.tables, self.balance)._without_unused_rows()

    def quantize_tokens(
        self, entries: Bool[Array, "G n"], bits: int, group: int
    ) -> "StoredVectors":
        """Store the chosen entries in groups of ``group`` channels of one token."""
        if not entries.any():
            return self
        return self._move(entries, TokenRows(quantize(self._balanced()[entries], bits, group)))

    def quantize_channels(
        self, entries: Bool[Array, "G n"], bits: int, group: int
    ) -> "StoredVectors":
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

    def _of_table(self, per_table: Sequence[float]) -> Array:
        """Return each entry's number of its table, or `FULL_BITS` at full precision."""
        return np.array([*per_table, FULL_BITS])[self.table]

    def _balanced(self) -> Float[Array, "G n d"]:
        return self.vectors if self.balance is None else self.vectors * self.balance[:, None]

    def _move(self, entries: Bool[Array, "G n"], rows: CodedRows) -> "StoredVectors":
        formats = [table.format for table in self.tables]
        number = formats.index(rows.format) if rows.format in formats else len(formats)
        joined = self.tables[number].extend(rows) if number < len(formats) else rows
        vectors, table, row = self.vectors.copy(), self.table.copy(), self.row.copy()
        vectors[entries] = rows.read()
        if self.balance is not None:
            vectors = np.where(entries[..., None], vectors / self.balance[:, None], vectors)
        table[entries] = number
        row[entries] = joined.count - rows.count + np.arange(rows.count)
        tables = (*self.tables[:number], joined, *self.tables[number + 1 :])
        return replace(
            self, vectors=vectors, table=table, row=row, tables=tables
        )._without_unused_rows()

    def _without_unused_rows(self) -> "StoredVectors":
        stored = int((self.table != FULL).sum())
        if stored == sum(table.count for table in self.tables):
            return self
        row, tables = self.row.copy(), []
        for number, table in enumerate(self.tables):
            own = self.table == number
            used = np.zeros(table.count, dtype=bool)
            used[self.row[own]] = True
            row[own] = (np.cumsum(used) - 1)[self.row[own]]
            tables.append(table.take(np.nonzero(used)[0]))
        return replace(self, row=row, tables=tuple(tables))
