"""Storage of keys or values: each vector at its own precision, codes packed in tables."""

from dataclasses import dataclass, replace

import numpy as np

from kvlab.reference.codes import Code, Scale
from kvlab.reference.notation import Array, Float, Int, KeepSet, Marks, Rows, Vectors
from kvlab.reference.quantization import FULL_BITS, Quantized, quantize

FULL = -1
"""In place of a table's number: the vector is stored at full precision."""


@dataclass(frozen=True)
class TokenGroups(Code):
    """Vectors quantised one by one, in groups of consecutive channels."""

    bits: int
    group: int

    def encode(self, x: Float[Array, "... d"]) -> tuple[Array, ...]:
        found = quantize(x, self.bits, self.group)
        return found.codes, found.scale, found.zero

    def decode(self, parts: tuple[Array, ...], d: int) -> Float[Array, "... d"]:
        codes, scale, zero = parts
        return Quantized(codes, scale, zero, self.bits, self.group, d).dequantize()


@dataclass(frozen=True)
class ChannelGroups(TokenGroups):
    """Vectors quantised in blocks of ``group`` consecutive tokens, a scale per channel of a block.

    Codes are ``[blocks, d, bytes]``, along the last axis the tokens of one block.
    """

    @property
    def tokens(self) -> int:
        return self.group

    def encode(self, x: Rows) -> tuple[Array, ...]:
        return super().encode(x.reshape(-1, self.group, x.shape[1]).swapaxes(-1, -2))

    def decode(self, parts: tuple[Array, ...], d: int) -> Float[Array, "vectors d"]:
        by_channel = super().decode(parts, self.group)
        return by_channel.swapaxes(-1, -2).reshape(-1, d)


@dataclass(frozen=True)
class CodedRows:
    """A table of vectors of ``d`` channels that one code stores."""

    code: Code
    d: int
    parts: tuple[Array, ...]

    @property
    def count(self) -> int:
        """Number of vectors."""
        return len(self.parts[0]) * self.code.tokens

    @property
    def overhead_bytes(self) -> int:
        """Bytes of scales, zero points and norms."""
        return sum(part.nbytes for part in self.parts[1:])

    def take(self, rows: Int[Array, " kept"]) -> "CodedRows":
        """Return the table of these rows alone, in this order, their codes untouched."""
        tokens = self.code.tokens
        first = rows[::tokens]
        whole = (first[:, None] + np.arange(tokens)).reshape(-1)
        if (first % tokens).any() or not np.array_equal(whole, rows):
            raise ValueError("a per-channel quantised block cannot lose single tokens")
        return replace(self, parts=tuple(part[first // tokens] for part in self.parts))

    def extend(self, other: "CodedRows") -> "CodedRows":
        """Return this table followed by another of the same code."""
        both = zip(self.parts, other.parts, strict=True)
        return replace(self, parts=tuple(np.concatenate(parts) for parts in both))


@dataclass(frozen=True)
class StoredVectors:
    """The vectors ``[G, n, d]`` of one layer; entry (g, j) is row ``row[g, j]`` of its table.

    ``balance`` multiplies a key before it is quantised and divides it after it is read (MiKV); the
    product with a query is unchanged in exact arithmetic. ``scale`` divides a vector before a code
    stores it and multiplies it after it is read.
    """

    vectors: Vectors
    """What attention reads: each vector as it came, or decoded."""
    table: Int[Array, "G n"]
    """Index into ``tables``; `FULL` for entries at full precision."""
    row: Int[Array, "G n"]
    tables: tuple[CodedRows, ...] = ()
    balance: Float[Array, "G d"] | None = None
    scale: Scale | None = None

    @classmethod
    def empty(cls, kv_heads: int, d: int) -> "StoredVectors":
        """Return the storage of no entries."""
        nowhere = np.zeros((kv_heads, 0), dtype=np.int64)
        return cls(np.zeros((kv_heads, 0, d)), nowhere, nowhere)

    @property
    def bits(self) -> Int[Array, "G n"]:
        """Bits per element of each entry, without scales and zero points."""
        return np.array([*(table.code.bits for table in self.tables), FULL_BITS])[self.table]

    @property
    def payload_bytes(self) -> int:
        """Bytes of all elements; an element at full precision counts 16 bits."""
        elements = int((self.table == FULL).sum()) * self.vectors.shape[-1]
        coded = sum(table.parts[0].nbytes for table in self.tables)
        return coded + elements * FULL_BITS // 8

    @property
    def overhead_bytes(self) -> int:
        """Bytes of scales, zero points, norms and balance factors."""
        balance = 0 if self.balance is None else self.balance.size * FULL_BITS // 8
        scale = 0 if self.scale is None else self.scale.nbytes
        return balance + scale + sum(table.overhead_bytes for table in self.tables)

    def append(self, vectors: Float[Array, "G m d"]) -> "StoredVectors":
        """Add entries at full precision at the end of every head."""
        nowhere = np.full(vectors.shape[:2], FULL)
        return replace(
            self,
            vectors=np.concatenate([self.vectors, vectors], axis=1),
            table=np.concatenate([self.table, nowhere], axis=1),
            row=np.concatenate([self.row, nowhere], axis=1),
        )

    def take(self, keep: KeepSet) -> "StoredVectors":
        """Return the storage of these entries alone; the others are freed."""
        kept = np.arange(len(keep))[:, None], keep
        vectors, table, row = self.vectors[kept], self.table[kept], self.row[kept]
        return replace(self, vectors=vectors, table=table, row=row)._without_unused_rows()

    def encode(self, code: Code, entries: Marks | None = None) -> "StoredVectors":
        """Store entries in a code, all at full precision if none are named.

        The first vectors fix the code's scale.
        """
        if entries is None:
            entries = np.asarray(self.table == FULL)
        if not entries.any():
            return self
        if (entries.sum(axis=1) % code.tokens).any():
            raise ValueError(f"entries of a head must be a multiple of group = {code.tokens}")
        scale = code.scale(self.vectors) if self.scale is None else self.scale
        scaled = self.vectors if self.balance is None else self.vectors * self.balance[:, None]
        scaled = scaled if scale is None else scaled / scale
        rows = CodedRows(code, scaled.shape[2], code.encode(scaled[entries]))
        codes = [table.code for table in self.tables]
        number = codes.index(code) if code in codes else len(codes)
        joined = self.tables[number].extend(rows) if number < len(codes) else rows
        vectors, table, row = self.vectors.copy(), self.table.copy(), self.row.copy()
        vectors[entries] = code.decode(rows.parts, rows.d)
        if self.balance is not None:
            vectors = np.where(entries[..., None], vectors / self.balance[:, None], vectors)
        if scale is not None:
            vectors = np.where(entries[..., None], vectors * scale, vectors)
        table[entries] = number
        row[entries] = joined.count - rows.count + np.arange(rows.count)
        tables = (*self.tables[:number], joined, *self.tables[number + 1 :])
        stored = StoredVectors(vectors, table, row, tables, self.balance, scale)
        return stored._without_unused_rows()

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
