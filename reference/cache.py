"""The cache of one layer: keys, values, positions and state per entry, evicted together."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from kvlab.reference.notation import Array, KeepSet, NewVectors, Positions
from kvlab.reference.stored_vectors import StoredVectors


@dataclass(frozen=True)
class Column:
    """One number that a score remembers of every entry."""

    meaning: str = ""
    start: float = 0.0
    """Number of a new entry."""
    integer: bool = False
    """Whether the numbers count something, so that other implementations must agree exactly."""
    compared: bool = True
    """Whether test vectors compare it; if not, it only helps to compute the other columns."""
    recorded: bool = False
    """Whether a recording of any method shows it (see `Method.tracker`)."""

    def rows(self, heads: int, entries: int) -> Array:
        """Return the numbers of new entries, ``[heads, entries]``."""
        return np.full((heads, entries), self.start, dtype=np.int64 if self.integer else np.float64)


@dataclass(frozen=True)
class State:
    """What a score remembers in one layer.

    ``entries`` holds arrays ``[G, n, ...]``, one row per cached entry: they grow and are compacted
    with the cache. ``stream`` holds what belongs to the token stream and not to an entry, such as
    the last queries.
    """

    entries: Mapping[str, Array] = field(default_factory=dict)
    stream: Mapping[str, Any] = field(default_factory=dict)

    def with_entries(self, **arrays: Array) -> "State":
        """Replace per-entry arrays."""
        return replace(self, entries={**self.entries, **arrays})

    def grown(self, columns: Mapping[str, Column], G: int, m: int) -> "State":
        """Add m entries to each of G KV heads, with what a score remembers of them at first."""
        entries = {
            name: np.concatenate([array, columns[name].rows(G, m)], axis=1)
            for name, array in self.entries.items()
        }
        return replace(self, entries=entries)

    def with_stream(self, **values: Any) -> "State":
        """Replace values of the stream."""
        return replace(self, stream={**self.stream, **values})


@dataclass(frozen=True)
class LayerCache:
    """Entries of one layer in ascending position, per KV head."""

    keys: StoredVectors
    values: StoredVectors
    positions: Positions
    state: State = field(default_factory=State)

    @classmethod
    def empty(cls, kv_heads: int, head_dim: int, columns: Mapping[str, Column]) -> "LayerCache":
        """Return a cache without entries; ``columns`` is what a score remembers of each."""
        nothing = StoredVectors.empty(kv_heads, head_dim)
        entries = {name: column.rows(kv_heads, 0) for name, column in columns.items()}
        positions = np.zeros((kv_heads, 0), dtype=np.int64)
        return cls(nothing, nothing, positions, State(entries))

    def __len__(self) -> int:
        """Entries per KV head."""
        return self.positions.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values as stored, scales and zero points included."""
        return self.payload_bytes + self.keys.overhead_bytes + self.values.overhead_bytes

    @property
    def payload_bytes(self) -> int:
        """Bytes of keys and values without scales and zero points."""
        return self.keys.payload_bytes + self.values.payload_bytes

    def append(
        self,
        keys: NewVectors,
        values: NewVectors,
        positions: Int[Array, " m"],
        columns: Mapping[str, Column],
    ) -> "LayerCache":
        """Add a block of entries, with what a score remembers of them at first."""
        G, m, _ = keys.shape
        return LayerCache(
            self.keys.append(keys),
            self.values.append(values),
            np.concatenate([self.positions, np.stack([positions] * G)], axis=1),
            self.state.grown(columns, G, m),
        )

    def compact(self, keep: KeepSet) -> "LayerCache":
        """Return the cache of these entries alone; nothing else evicts an entry."""
        if keep.shape[1] == len(self):
            return self
        kept = np.arange(len(keep))[:, None], keep
        entries = {name: array[kept] for name, array in self.state.entries.items()}
        return LayerCache(
            self.keys.take(keep),
            self.values.take(keep),
            self.positions[kept],
            State(entries, self.state.stream),
        )
