"""A batch in one layer: its clock, and its entries in slots, with positions and state.

A slot holds one entry per head, or none: then its position is -1. Sequences of a batch that differ
in length, and tokens of padding, leave empty slots. Slots are in ascending position, the empty ones
first, until an entry is evicted in place; `LayerCache.ordered` says whether they still are.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from kvlab.fast.engine.columns import NOWHERE, Columns
from kvlab.fast.engine.storage import Partners, Storage
from kvlab.fast.kernels.attention import compute_dtype
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.keep import last_in_use
from kvlab.fast.kernels.notation import Bool, Float, Int, Marks, Positions, QueryPositions, Tensor
from kvlab.fast.kernels.vector_tables import VectorTable
from kvlab.reference.cache import Column
from kvlab.reference.observation import Clock
from kvlab.reference.quantization import FULL_BITS


@dataclass(eq=False)
class BatchClock:
    """Where in the token stream a block stands, for every sequence of a batch."""

    rows: tuple[Clock, ...]
    """One clock per sequence; its ``block`` does not count padding."""
    positions: QueryPositions
    """Absolute positions of the block's tokens; -1 for padding, which stands before them."""
    prompt: Int[Tensor, "N 1 1"]
    memo: dict[Any, Any] = field(default_factory=dict)
    """Results that were computed from this clock, because all layers ask for the same ones."""

    @classmethod
    def of(cls, rows: Sequence[Clock], device: Any) -> "BatchClock":
        """Make the clock of blocks of equal length, without padding."""
        numbers = [(row.seen, row.prompt) for row in rows]
        seen, prompt = torch.tensor(numbers, dtype=torch.int32, device=device).T
        back = torch.arange(rows[0].block, 0, -1, dtype=torch.int32, device=device)
        return cls(tuple(rows), seen[:, None] - back, prompt[:, None, None])

    def of_block(self, rows: Sequence[Clock], positions: QueryPositions) -> "BatchClock":
        """Return the clock of another block of the same texts."""
        return BatchClock(tuple(rows), positions, self.prompt)

    def of_layers(self, layers: int, prompt: Tensor | None = None) -> "BatchClock":
        """Return the clock of every layer's sequences; ``prompt``: theirs, of an earlier block."""
        if layers == 1:
            return self
        prompt = self.prompt.repeat(layers, 1, 1) if prompt is None else prompt
        positions = self.positions.expand(layers, *self.positions.shape).flatten(0, 1)
        return BatchClock(self.rows * layers, positions, prompt)

    @property
    def present(self) -> tuple[int, ...]:
        """Tokens of each sequence in this block, without padding."""
        return self.once("present", lambda: tuple([row.block for row in self.rows]))

    @property
    def prefilling(self) -> bool:
        """Whether the block belongs to the prompts, which end together."""
        return next(row.prefilling for row in self.rows if row.block)

    @property
    def seen(self) -> Int[Tensor, "N 1 1"]:
        """Tokens of each sequence, the block included."""
        return self.once("seen", self._seen)

    def _seen(self) -> Int[Tensor, "N 1 1"]:
        if min(self.present):  # the last token is of the block
            return self.positions[:, -1:, None] + 1
        return self.prompt.new_tensor([row.seen for row in self.rows])[:, None, None]

    def oldest_of(self, recent: int) -> Int[Tensor, "N 1 1"]:
        """Return the position of the first of the ``recent`` newest tokens."""
        return self.once(("oldest", recent), lambda: self.seen - recent)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returns, and make it only once."""
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    def to(self, device: torch.device) -> "BatchClock":
        """Return this clock on another device."""
        if self.positions.device == device:
            return self
        return self.once(
            device,
            lambda: BatchClock(self.rows, self.positions.to(device), self.prompt.to(device)),
        )


@dataclass(frozen=True)
class KeepSet:
    """Slots to keep, for every sequence and head."""

    slots: Int[Tensor, "N G kept"]
    """In ascending position; a sequence that keeps fewer slots than another has them at the end."""
    counts: Sequence[int]
    """How many slots are kept per head, for each sequence."""

    @property
    def in_use(self) -> Bool[Tensor, "N G kept"]:
        """Mark the places of ``slots`` that hold a slot of their sequence."""
        used = last_in_use(self.slots.shape[2], self.counts, self.slots.device)
        return used.expand_as(self.slots)

    def among(self, entries: int) -> Marks:
        """Mark which of ``entries`` slots are kept."""
        nobody = torch.zeros(
            (*self.slots.shape[:2], entries), dtype=torch.bool, device=self.slots.device
        )
        return nobody.scatter_(-1, self.slots, self.in_use)


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
        """Bytes of all parts."""
        return self.keys + self.values + self.scales + self.state


@dataclass
class State:
    """What a score remembers in one layer: columns of the entries, and of the token stream."""

    ALIKE: ClassVar = ()

    entries: Columns
    """Per-entry columns ``[N, G, n]``: they grow and are compacted with the cache."""
    stream: dict[str, Any] = field(default_factory=dict)
    """Tensors with the batch axis in front, or tuples with one value per sequence."""


class LayerCache:
    """Entries of one layer, or of several: layer l's sequence r is row l·N + r of the batch."""

    ALIKE = ("quantises", "layers", "ordered", "_partners", "dtype", "triton")
    """Attributes that are the same for all rows, or that are made anew once rows have moved; here
    and in every class with ``map_rows``, which moves all others."""

    def __init__(
        self, remembered: Mapping[str, Column], quantises: bool = False, wide: bool = False
    ) -> None:
        """Make an empty cache; ``quantises``: entries may be stored at different precisions."""
        self.quantises = quantises
        self.layers = 1
        self.take_state(State(Columns(remembered, wide)))
        self.counts: tuple[int, ...] = ()
        self.demoted: tuple[int, ...] = ()
        """Entries of each row that are kept in fewer bits in place of being evicted (DDKS)."""
        self.ordered = True
        self.mixed: tuple[Storage, Storage] | None = None
        self._partners = Partners()
        self.nan_if_any: Float[Tensor, "N _ 1"] | None = None
        """NaN in rows in which a score has been NaN, else any number; None before a decision."""
        self._vacant: Int[Tensor, "N G 1"] | None = None
        """Slot of each head that the next single token takes: see `has_vacant_slot`."""
        self.dtype = torch.float32
        """Number format of logits, probabilities and scores; known with the first entries."""
        self.triton = False
        """Whether Triton's kernels attend to the entries; known with the first of them."""

    def take_state(self, state: State) -> None:
        """Remember this, whose columns are the entries."""
        self.state, self.columns = state, state.entries

    def release_state(self) -> None:
        """Free what a score remembers: nothing will be evicted any more."""
        self.state.stream = {}
        self.columns.release_state()

    def __len__(self) -> int:
        """Slots per head; between two steps one of them may be vacant."""
        return self.columns.count

    @property
    def has_vacant_slot(self) -> bool:
        """Whether the next single token overwrites a slot of each head.

        It is that of an entry that was evicted alone, or one that a CUDA graph has set aside for
        the token that it captures.
        """
        return self._vacant is not None

    @property
    def sequences(self) -> int:
        """Sequences of the batch."""
        return len(self.counts) // self.layers

    @property
    def even(self) -> bool:
        """Whether all layers have equally many entries; if not, each has room for the most."""
        return self.counts == self.counts[: self.sequences] * self.layers

    @property
    def ragged(self) -> bool:
        """Whether some slots are empty."""
        return self.counts != () and min(self.counts) < self.columns.count

    @property
    def positions(self) -> Positions:
        """Absolute position of each entry, -1 where a slot is empty."""
        return self.columns["positions"]

    def decoded(self, name: str) -> Tensor:
        """Return keys or values whose precisions are mixed, as attention reads them."""
        assert self.mixed is not None
        return self.mixed[name == "values"].read(self.dtype)

    def tables(self) -> tuple[list[VectorTable], list[VectorTable]] | None:
        """Return the tables of keys and of values, where kernels can read them."""
        if self.mixed is None or not all(storage.readable for storage in self.mixed):
            return None
        return self.mixed[0].tables, self.mixed[1].tables

    def partners(self) -> list[Tensor]:
        """Return where the value of every row of the keys' tables lies."""
        assert self.mixed is not None
        return self._partners.of(*self.mixed)

    def bits(self) -> Positions:
        """Bits per element of the stored keys."""
        if self.mixed is not None:
            return self.mixed[0].bits()
        return torch.full_like(self.positions, FULL_BITS)

    def append(
        self, keys: Float[Tensor, "N G m d"], values: Float[Tensor, "N G m d"], clock: BatchClock
    ) -> None:
        """Add a block of entries; slots of padding stay empty."""
        N, G, m, _ = keys.shape
        columns: dict[str, Tensor] = {}
        if self.quantises:
            if self.mixed is None:
                self.mixed = (Storage(keys), Storage(values))
            used = clock.once("used", lambda: clock.positions >= 0)
            for storage, vectors in zip(self.mixed, (keys, values), strict=True):
                storage.append(vectors, used, clock.present)
        else:
            columns = {"keys": keys, "values": values}
        columns["positions"] = clock.positions[:, None].expand(N, G, m)
        if not self.counts:
            self.begin(N, keys)
        only_block = len(self) == 0
        self.open_slots(columns, clock.present)
        if min(clock.present) < m:
            self.ordered = self.ordered and only_block

    def begin(self, rows: int, like: Tensor) -> None:
        """Begin with so many rows without entries, whose keys and values are ``like`` a tensor."""
        self.counts = self.demoted = (0,) * rows
        self.dtype, self.triton = compute_dtype(like.dtype), uses_triton(like)

    def open_slots(
        self, columns: Mapping[str, Tensor], present: tuple[int, ...]
    ) -> Int[Tensor, " NG"] | None:
        """Add slots, and write the rows of ``columns``; the caller writes the other columns.

        Return the index, over all heads and slots, of the vacant slots that are used again; None if
        the slots are new and at the end.
        """
        m = next(iter(columns.values())).shape[2]
        reused = None
        if self._vacant is not None and max(present) == min(present) == m == 1:
            reused = self.columns.overwrite(self._vacant, columns)
            self._vacant = None
        else:
            self.settle()
            self.columns.append(columns, self.dtype)
        self.counts = tuple([a + b for a, b in zip(self.counts, present, strict=True)])
        return reused

    def compact(self, keep: KeepSet) -> None:
        """Keep only these slots; entries are evicted only here and in `evict_one`."""
        counts, width = tuple(keep.counts), keep.slots.shape[2]
        if counts == self.counts:
            return
        if self.mixed is not None:
            for storage in self.mixed:
                storage.take(keep.slots, keep.counts)
        whole = not self.ragged and min(counts) == max(counts)
        self.columns.take(keep.slots, ascending=self.ordered and whole)
        if any(count != width for count in counts):
            self.positions.masked_fill_(~keep.in_use, NOWHERE)
        self.counts, self.ordered = counts, True

    def evict_one(self, slot: Int[Tensor, "N G 1"]) -> None:
        """Evict one entry of every head: the next token overwrites its slot."""
        self._vacant = slot
        self.counts = tuple([count - 1 for count in self.counts])
        self.ordered = False

    def count_on(self, leaving: int) -> None:
        """Count a token, and entries that left, where others wrote the columns."""
        self.counts = tuple(count + 1 - leaving for count in self.counts)
        self.columns.count += 1 - leaving
        self.columns.filled = self.columns.count
        self.ordered = self.ordered or leaving > 0

    def check_scores(self) -> None:
        """Raise ValueError if a score was NaN so far. Waits for the device."""
        if self.nan_if_any is not None and self.nan_if_any.isnan().any():
            raise ValueError("scores must not be NaN: the model's keys or values are no numbers")

    def settle(self) -> None:
        """Move the last entry into the vacant slot, if no single token comes to fill the slot."""
        if self._vacant is not None:
            self.columns.replace_by_last(self._vacant)
            self._vacant = None

    def map_rows(self, change: Callable[[Tensor], Tensor], order: Sequence[int]) -> None:
        """Apply one change of the batch axis to every layer; ``order`` is the same as indices."""
        self.settle()
        N = self.sequences

        def changed(x: Tensor) -> Tensor:
            alone = self.layers == 1
            return change(x) if alone else torch.cat([change(rows) for rows in x.split(N)])

        order = [layer * N + row for layer in range(self.layers) for row in order]
        self.columns.map_rows(changed)
        self.state.stream = {
            name: changed(value) if isinstance(value, Tensor) else tuple(value[i] for i in order)
            for name, value in self.state.stream.items()
        }
        if self.mixed is not None:
            for storage in self.mixed:
                storage.map_rows(changed, order)
        self.counts = tuple(self.counts[i] for i in order)
        self.demoted = tuple(self.demoted[i] for i in order)
        if self.nan_if_any is not None:
            self.nan_if_any = changed(self.nan_if_any)

    @classmethod
    def joined(cls, caches: Sequence["LayerCache"]) -> "LayerCache":
        """Move the entries of several layers into one cache, along the batch axis."""
        first = caches[0]
        for cache in caches:
            cache.settle()
        whole = copy(first)
        whole.take_state(State(Columns.joined([cache.columns for cache in caches])))
        for name in first.state.stream:
            whole.state.stream[name] = torch.cat([cache.state.stream[name] for cache in caches])
        whole.layers, whole.counts = len(caches), first.counts * len(caches)
        whole.demoted = first.demoted * len(caches)
        whole.ordered = all(cache.ordered for cache in caches)
        noted, whole.nan_if_any = [each.nan_if_any for each in caches], None
        noted = [marks for marks in noted if marks is not None]
        if len(noted) == len(caches):
            heads = whole.positions.shape[1]
            whole.nan_if_any = torch.cat([marks.expand(-1, heads, 1) for marks in noted])
        return whole

    def copied(self, layer: int) -> "LayerCache":
        """Return a copy of one layer."""
        first = layer * self.sequences
        rows = slice(first, first + self.sequences)
        part = copy(self)
        part.layers = 1
        part.take_state(State(self.columns.part(first, self.sequences)))
        for name, value in self.state.stream.items():
            mine = value[rows]
            part.state.stream[name] = mine.clone() if isinstance(mine, Tensor) else mine
        part.counts, part.demoted = self.counts[rows], self.demoted[rows]
        part._partners = Partners()
        if self.mixed is not None:
            part.mixed = (self.mixed[0].copy(), self.mixed[1].copy())
        if self.nan_if_any is not None:
            part.nan_if_any = self.nan_if_any[rows].clone()
        if self._vacant is not None:
            part._vacant = self._vacant[rows]
            part.settle()
        return part

    def memory(self) -> LayerMemory:
        """Bytes that each layer has allocated, slack included."""
        columns = dict(self.columns.nbytes)
        keys, values = columns.pop("keys", 0), columns.pop("values", 0)
        scales = 0
        if self.mixed is not None:
            keys, values = (storage.payload_bytes for storage in self.mixed)
            scales = sum(storage.overhead_bytes for storage in self.mixed) + self._partners.nbytes
        stream = sum(bytes_of(value) for value in self.state.stream.values())
        sizes = (keys, values, scales, sum(columns.values()) + stream)
        return LayerMemory(*(size // self.layers for size in sizes))


def bytes_of(value: Any) -> int:
    """Return the bytes of an array or a tensor, and of all that a tuple or a mapping holds."""
    if isinstance(value, tuple | Mapping):
        return sum(bytes_of(x) for x in (value.values() if isinstance(value, Mapping) else value))
    return getattr(value, "nbytes", 0)
