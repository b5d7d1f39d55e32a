"""The cache of one layer for a batch: keys, values, positions and per-entry state, in slots.

A slot holds one entry per head, or none: then its position is -1. Sequences of a batch that differ
in length, and tokens of padding, leave empty slots. Slots are in ascending position, the empty ones
first, until an entry is evicted in place; `LayerCache.ordered` says which.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.attention import compute_dtype
from kvlab.fast.columns import Table
from kvlab.fast.kernels.coded_table import CodedEntries
from kvlab.fast.padding import last_in_use
from kvlab.fast.storage import Partners, Storage
from kvlab.reference.quantization import FULL_BITS

NOWHERE = -1
"""Position of an empty slot."""


@dataclass(frozen=True)
class LayerMemory:
    """Bytes that one layer has allocated."""

    keys: int
    values: int
    scales: int
    """Scales, zero points, balance factors, slots and partners of quantised entries."""
    state: int
    """Positions, scores and remembered queries."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.keys + self.values + self.scales + self.state


@dataclass
class State:
    """What a score remembers in one layer: columns of the entries, and of the token stream."""

    table: Table
    stream: dict[str, Any] = field(default_factory=dict)

    @property
    def entries(self) -> Table:
        """Per-entry columns ``[N, G, n]``: they grow and are compacted with the cache."""
        return self.table


class LayerCache:
    """Entries of one layer."""

    def __init__(self, fills: Mapping[str, float], quantises: bool = False) -> None:
        """Make an empty cache.

        Args:
            fills: names of the per-entry state and the value that a new entry starts with; whole
                numbers are stored as int32.
            quantises: whether entries may be stored at different precisions.
        """
        self.fills = dict(fills)
        self.quantises = quantises
        self.table = Table()
        self.state = State(self.table)
        self.counts: tuple[int, ...] = ()
        self.demoted: tuple[int, ...] = ()
        self.ordered = True
        self.mixed: tuple[Storage, Storage] | None = None
        self._partners = Partners()
        self.lowest_scores: Tensor | None = None
        self._vacant: Int[Tensor, "N G 1"] | None = None

    def __len__(self) -> int:
        """Slots per head; between two steps one of them may be vacant."""
        return self.table.count

    @property
    def ragged(self) -> bool:
        """Whether some slots are empty."""
        return any(count != self.table.count for count in self.counts)

    @property
    def positions(self) -> Int[Tensor, "N G n"]:
        """Absolute position of each entry, -1 where a slot is empty."""
        return self.table["positions"]

    def keys(self, dtype: torch.dtype) -> Float[Tensor, "N G n d"]:
        """Return the keys as attention reads them."""
        return self.table["keys"].to(dtype) if self.mixed is None else self.mixed[0].read(dtype)

    def values(self, dtype: torch.dtype) -> Float[Tensor, "N G n d"]:
        """Return the values as attention reads them."""
        return self.table["values"].to(dtype) if self.mixed is None else self.mixed[1].read(dtype)

    def coded(self) -> CodedEntries | None:
        """Return entries of mixed precision as attention kernels read them, if they can."""
        if self.mixed is None:
            return None
        keys, values = (storage.coded() for storage in self.mixed)
        if keys is None or values is None:
            return None
        return CodedEntries(keys, values, self._partners.of(*self.mixed, keys, values))

    def bits(self) -> Int[Tensor, "N G n"]:
        """Bits per element of the stored keys."""
        if self.mixed is not None:
            return self.mixed[0].bits()
        return torch.full_like(self.positions, FULL_BITS)

    def append(
        self,
        keys: Float[Tensor, "N G m d"],
        values: Float[Tensor, "N G m d"],
        positions: Int[Tensor, "N m"],
        present: tuple[int, ...],
    ) -> None:
        """Add a block of entries; of its slots each sequence fills the last ``present``."""
        N, G, m, _ = keys.shape
        columns: dict[str, Tensor] = {}
        if self.quantises:
            if self.mixed is None:
                self.mixed = (Storage(keys), Storage(values))
            for storage, vectors in zip(self.mixed, (keys, values), strict=True):
                storage.append(vectors, present)
        else:
            columns = {"keys": keys, "values": values}
        columns["positions"] = positions[:, None].expand(N, G, m)
        if not self.counts:
            self.counts = self.demoted = (0,) * N
        self.open_slots(columns, present, compute_dtype(keys.dtype))

    def open_slots(
        self, columns: Mapping[str, Tensor], present: tuple[int, ...], floating: torch.dtype
    ) -> Int[Tensor, " NG"] | None:
        """Add slots with new rows of some columns; others of them are to be written.

        Returns:
            Over all heads and slots the index of the one slot per head that is taken again; None if
            the slots are new and at the end.
        """
        m = next(iter(columns.values())).shape[2]
        reused = None
        if self._vacant is not None and max(present) == min(present) == m == 1:
            reused = self.table.overwrite(self._vacant, columns, self.fills)
            self._vacant = None
        else:
            self.settle()
            self.table.append(columns, self.fills, floating)
            self.ordered = self.ordered and (m == min(present) or len(self) == m)
        self.counts = tuple(a + b for a, b in zip(self.counts, present, strict=True))
        return reused

    def compact(self, keep: Int[Tensor, "N G kept"], kept: Sequence[int]) -> None:
        """Keep these slots alone, in ascending position; of them the last ``kept`` per sequence.

        Besides `evict_one` the only way by which an entry leaves.
        """
        width = keep.shape[2]
        valid = last_in_use(width, kept, keep.device).expand_as(keep)
        if self.mixed is not None:
            for storage in self.mixed:
                storage.take(keep, valid)
        whole = not self.ragged and min(kept) == max(kept)
        self.table.take(keep, ascending=self.ordered and whole)
        if any(count != width for count in kept):
            self.positions.masked_fill_(~valid, NOWHERE)
        self.counts, self.ordered = tuple(kept), True

    def evict_one(self, slot: Int[Tensor, "N G 1"]) -> None:
        """Let one entry leave every head: the next token overwrites its slot."""
        self._vacant = slot
        self.counts = tuple(count - 1 for count in self.counts)
        self.ordered = False

    def settle(self) -> None:
        """Fill the vacant slot with the last entry, where no single token comes to fill it."""
        if self._vacant is not None:
            self.table.replace_by_last(self._vacant)
            self._vacant = None

    def map_rows(self, change: Callable[[Tensor], Tensor], order: Sequence[int]) -> None:
        """Apply one change of the batch axis; ``order`` is the same change as indices."""
        self.settle()
        self.table.map_rows(change)
        self.state.stream = {
            name: change(value) if isinstance(value, Tensor) else value
            for name, value in self.state.stream.items()
        }
        if self.mixed is not None:
            for storage in self.mixed:
                storage.map_rows(change, order)
        self.counts = tuple(self.counts[i] for i in order)
        self.demoted = tuple(self.demoted[i] for i in order)
        self.lowest_scores = None

    def memory(self) -> LayerMemory:
        """Bytes that this layer has allocated, slack included."""
        columns = dict(self.table.nbytes)
        keys, values = columns.pop("keys", 0), columns.pop("values", 0)
        scales = 0
        if self.mixed is not None:
            keys, values = (storage.payload_bytes for storage in self.mixed)
            scales = sum(storage.overhead_bytes for storage in self.mixed) + self._partners.nbytes
        stream = sum(x.nbytes for x in self.state.stream.values() if isinstance(x, Tensor))
        return LayerMemory(keys, values, scales, sum(columns.values()) + stream)


def in_ascending_position(
    x: Tensor, positions: Int[Tensor, "N G n"], ordered: bool
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return ``x`` in cache order, and the function that puts such an array back into slots."""
    if ordered:
        return x, lambda y: y
    order = positions.argsort(dim=-1)
    return x.gather(-1, order), lambda y: torch.empty_like(y).scatter_(-1, order, y)
