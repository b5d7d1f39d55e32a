"""Vectors of one precision, as attention kernels take them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.quantization import Quantized
from kvlab.reference.quantization import FULL_BITS

TABLE_SHIFT = 27
"""A partner is the number of a table, shifted by this many bits, and a row of it."""


@dataclass(frozen=True)
class CodedTable:
    """Vectors of one precision, and the slots of the entries that they belong to."""

    slots: Int[Tensor, "N G rows"]
    """−1 for rows that belong to no entry."""
    vectors: Float[Tensor, "N G rows d"] | Quantized
    """As they are, or codes in groups of consecutive channels."""
    by_channel: bool = False
    """Whether codes are in groups of consecutive rows instead: ``[N, G, blocks, d, bytes]``."""

    @property
    def bits(self) -> int:
        """Bits per element."""
        return self.vectors.bits if isinstance(self.vectors, Quantized) else FULL_BITS

    @property
    def rows(self) -> int:
        """Rows per head."""
        return self.slots.shape[2]

    def read(self, dtype: torch.dtype) -> Float[Tensor, "N G rows d"]:
        """Dequantise."""
        if isinstance(self.vectors, Quantized):
            read = self.vectors.dequantize(dtype)
            return read.transpose(-1, -2).flatten(2, 3) if self.by_channel else read
        return self.vectors.to(dtype)


@dataclass(frozen=True)
class CodedEntries:
    """Entries whose vectors lie in tables of several precisions."""

    keys: Sequence[CodedTable]
    """They together hold each entry's key once."""
    values: Sequence[CodedTable]
    """Likewise; an entry's value may be in another table than its key."""
    partners: Sequence[Int[Tensor, "N G _"]]
    """`partners_of` them."""


def partners_of(
    keys: Sequence[CodedTable], values: Sequence[CodedTable], entries: int
) -> list[Int[Tensor, "N G _"]]:
    """Say for every row of the tables of keys where the value of its entry lies.

    Args:
        keys: tables that together hold each entry's key once.
        values: likewise; entries may be in other tables than their keys.
        entries: slots of the cache.

    Returns:
        Per table of keys: number of the table of values · 2^`TABLE_SHIFT` + row, int32; −1 for rows
        that belong to no entry.
    """
    slots = values[0].slots
    where = torch.full((*slots.shape[:2], entries + 1), -1, dtype=torch.int32, device=slots.device)
    for number, table in enumerate(values):
        rows = torch.arange(table.rows, dtype=torch.int32, device=slots.device)
        rows = (rows + (number << TABLE_SHIFT)).expand(table.slots.shape)
        where.scatter_(2, _targets(table, entries), rows)
    where[:, :, entries] = -1
    return [where.gather(2, _targets(table, entries)) for table in keys]


def _targets(table: CodedTable, entries: int) -> Int[Tensor, "N G rows"]:
    return torch.where(table.slots < 0, entries, table.slots).long()
