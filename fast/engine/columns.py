"""Columns of the entries of one layer, in buffers that grow in place and really shrink."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import torch

from kvlab.fast.kernels.move import move_survivors
from kvlab.fast.kernels.notation import Change, Int, Slots, Tensor
from kvlab.reference.cache import Column
from kvlab.reference.slots import grown, shrunk

Kind = tuple[torch.dtype, tuple[int, ...]]
"""Number format and shape of a row: the columns of one buffer have both in common."""

NOWHERE = -1
"""Position of an empty slot."""


class Columns:
    """Named columns ``[N, G, n, ...]``, one row per slot; all rows of a slot move together.

    Columns of one kind share a buffer ``[columns, N, G, capacity, ...]``: moving a row is then one
    operation for all of them.
    """

    ALIKE = (
        *("state", "wide", "places", "count", "capacity", "filled", "reserved"),
        *("_first_slots", "_views"),
    )

    def __init__(self, state: Mapping[str, Column] | None = None, wide: bool = False) -> None:
        """Make columns without rows; ``wide``: remembered numbers take 64 bits, not 32."""
        self.state = dict(state or {})
        self.wide = wide
        self.buffers: dict[Kind, Tensor] = {}
        self.places: dict[str, tuple[Kind, int]] = {}
        self.count = 0
        self.capacity = 0
        self.filled = 0
        """Slots, used or not, in which remembered columns hold an entry's or a start value."""
        self.reserved = 0
        """Slots that every buffer has at least, whatever is evicted."""
        self._first_slots: Tensor | None = None
        self._views: dict[tuple[str | int, ...], Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        """Return a column, to read or to write to."""
        view = self._views.get((name, 0, self.count))
        return self._rows(name, 0, self.count) if view is None else view

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes allocated for each column, slack included."""
        return {name: self.buffers[kind][i].nbytes for name, (kind, i) in self.places.items()}

    def append(self, rows: Mapping[str, Tensor], floating: torch.dtype) -> None:
        """Add rows at the end of every column; columns of a score get their start values.

        Remembered fractions are in the format ``floating``, unless the columns are ``wide``.
        """
        new = next(iter(rows.values()))
        first, m = self.count, new.shape[2]
        if not self.buffers:
            self._create(rows, floating, m)
        elif first + m > self.capacity:
            self._resize(grown(self.capacity, first + m))
        rows, self.count = self._fitted(rows), first + m
        for name, added in rows.items():
            self._column(name).narrow(2, first, m).copy_(added)
        if self.count > self.filled:
            for name, column in self.state.items():
                self._rows(name, first, self.capacity - first).fill_(column.start)
            self.filled = self.capacity

    def take(self, slots: Slots, ascending: bool = False) -> None:
        """Keep only these slots, in this order; buffers with too much slack are replaced.

        ``ascending`` promises that slots ascend and none lies before its new place.
        """
        move_survivors(self.buffers, slots, ascending)
        self.count = self.filled = slots.shape[2]
        if (capacity := shrunk(self.capacity, self.count)) < self.capacity > self.reserved:
            self._resize(max(capacity, self.reserved))

    def overwrite(
        self, slot: Int[Tensor, "N G 1"], rows: Mapping[str, Tensor]
    ) -> Int[Tensor, " NG"]:
        """Put one new row of every head into a slot; ``rows`` as for `append`.

        Return the index of these slots over all heads and slots.
        """
        for name, new in self._fitted(rows).items():
            column = self[name]
            index = slot.view(*slot.shape, *[1] * (column.dim() - 3)).expand_as(new)
            column.scatter_(2, index, new)
        for name, column in self.state.items():
            self[name].scatter_(2, slot, column.start)
        return (self._heads(slot) + slot).flatten()

    def replace_by_last(self, slot: Int[Tensor, "N G 1"]) -> None:
        """Let the last slot's row overwrite another one: one slot less in every head."""
        rows = (self._heads(slot) + slot).flatten()
        self.count -= 1
        self.filled = self.count
        for buffer in self.buffers.values():
            last = buffer.select(3, self.count).flatten(1, 2).clone()
            self._flat(buffer).index_copy_(1, rows, last)

    def trim(self) -> None:
        """Free the slots that hold no row."""
        self.reserved = 0
        if self.capacity > self.count:
            self._resize(self.count)

    def reserve(self, slots: int) -> None:
        """Give every buffer at least so many slots, now and after evictions."""
        self.reserved = slots
        if slots > self.capacity:
            self._resize(slots)

    def empty_from(self, slot: int) -> None:
        """Let attention find nothing in this slot and those behind it."""
        unused = self.capacity - slot
        for buffer in self.buffers.values():
            buffer.narrow(3, slot, unused).zero_()
        self._column("positions").narrow(2, slot, unused).fill_(NOWHERE)

    def move_into(self, buffers: dict[Kind, Tensor]) -> None:
        """Move the rows into other buffers, which have room for them."""
        for kind, buffer in self.buffers.items():
            buffers[kind].narrow(3, 0, self.count).copy_(buffer.narrow(3, 0, self.count))
            self.capacity = buffers[kind].shape[3]
        self.buffers, self.filled = buffers, self.count
        self._first_slots, self._views = None, {}

    def release_state(self) -> None:
        """Free the columns that a score remembers."""
        if not self.state:
            return
        self._pack({n: x for n, x in self._columns().items() if n not in self.state})
        self.state = {}

    def map_rows(self, change: Change) -> None:
        """Apply one change of the batch axis to every column."""
        self.buffers = {
            kind: torch.stack([change(column) for column in buffer])
            for kind, buffer in self.buffers.items()
        }
        self._first_slots, self._views = None, {}

    def write(
        self, rows: Mapping[str, Tensor], first: int, slots: Int[Tensor, " NG"] | None
    ) -> None:
        """Write one row per head of consecutive sequences, from ``first`` on.

        They go into ``slots``, as `overwrite` returned them; None for the last slots.
        """
        for name, new in rows.items():
            if new.dtype != self.places[name][0][0]:
                self.write(self._widened(rows), first, slots)
                return
            if slots is None:
                self.of_sequences(name, first, new.shape[0], self.count - 1).copy_(new)
                continue
            view = self._views.get((name, 0, -1))
            view = self._flat_column(name) if view is None else view
            view.index_copy_(0, slots, new.flatten(0, 2))

    def of_sequences(self, name: str, first: int, sequences: int, slot: int = 0) -> Tensor:
        """Return a column of some consecutive sequences from a slot on, to read or to write to."""
        key = (name, first, sequences, slot, self.count)
        view = self._views.get(key)
        if view is None:
            view = self._rows(name, slot, self.count - slot).narrow(0, first, sequences)
            self._views[key] = view
        return view

    def vectors_of(self, first: int, sequences: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of some consecutive sequences, to read."""
        keys = self._views.get(("keys", first, sequences, 0, self.count))
        values = self._views.get(("values", first, sequences, 0, self.count))
        if keys is None or values is None:
            keys = self.of_sequences("keys", first, sequences)
            values = self.of_sequences("values", first, sequences)
        return keys, values

    @property
    def layout(self) -> tuple[Any, ...]:
        """Slots, kinds and device, which are equal in layers whose columns can be joined."""
        device = next((buffer.device for buffer in self.buffers.values()), None)
        return self.count, device, tuple((k, b.shape[:3]) for k, b in self.buffers.items())

    @classmethod
    def joined(cls, layers: Sequence["Columns"]) -> "Columns":
        """Move layers of equal layout into one, along the batch axis; they are empty afterwards."""
        first, whole = layers[0], layers[0]._emptied()
        for kind, buffer in first.buffers.items():
            columns, N = buffer.shape[:2]
            shape = (columns, N * len(layers), *buffer.shape[2:])
            whole.buffers[kind] = buffer.new_empty(shape)
        for number, layer in enumerate(layers):
            for kind, buffer in layer.buffers.items():
                N = buffer.shape[1]
                content = whole.buffers[kind].narrow(1, number * N, N)
                content.narrow(3, 0, layer.count).copy_(buffer.narrow(3, 0, layer.count))
            layer.buffers, layer._views = {}, {}
        return whole

    def part(self, first: int, sequences: int) -> "Columns":
        """Return copies of the columns of some consecutive sequences."""
        part = self._emptied()
        for kind, buffer in self.buffers.items():
            part.buffers[kind] = buffer.narrow(1, first, sequences).clone()
        return part

    def _columns(self) -> dict[str, Tensor]:
        """Return the columns with all their slots."""
        return {name: self._column(name) for name in self.places}

    def _pack(self, columns: Mapping[str, Tensor]) -> None:
        """Hold these columns, and no others."""
        kinds: dict[Kind, list[str]] = {}
        for name, column in columns.items():
            kinds.setdefault((column.dtype, tuple(column.shape[3:])), []).append(name)
        self.buffers, self.places, self._views = {}, {}, {}
        for kind, names in kinds.items():
            self.buffers[kind] = torch.stack([columns[name] for name in names])
            self.places |= {name: (kind, number) for number, name in enumerate(names)}

    def _fitted(self, rows: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return rows in the number formats of their columns, which become wider if need be."""
        for name, new in rows.items():
            if new.dtype != self.places[name][0][0]:
                return self._widened(rows)
        return rows

    def _widened(self, rows: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        formats = {name: self.places[name][0][0] for name in rows}
        wider = {n: torch.promote_types(new.dtype, formats[n]) for n, new in rows.items()}
        if wider != formats:
            columns = self._columns()
            self._pack({name: x.to(wider.get(name, x.dtype)) for name, x in columns.items()})
        return {name: new.to(wider[name]) for name, new in rows.items()}

    def _emptied(self) -> "Columns":
        """Return columns of the same names and slots, without their buffers."""
        other = copy(self)
        other.places, other.filled, other.buffers = dict(self.places), self.count, {}
        other._first_slots, other._views = None, {}
        return other

    def _rows(self, name: str, first: int, m: int) -> Tensor:
        view = self._views.get((name, first, m))
        if view is None:
            column = self._views.get((name,))
            column = self._column(name) if column is None else column
            view = self._views[name, first, m] = column.narrow(2, first, m)
        return view

    def _column(self, name: str) -> Tensor:
        """Return a column with all its slots."""
        view = self._views.get((name,))
        if view is None:
            kind, number = self.places[name]
            view = self._views[name,] = self.buffers[kind][number]
        return view

    def _flat_column(self, name: str) -> Tensor:
        """Return a column with the slots of all heads along one axis."""
        kind, number = self.places[name]
        view = self._views[name, 0, -1] = self._flat(self.buffers[kind])[number]
        return view

    def _flat(self, buffer: Tensor) -> Tensor:
        """Return a buffer with the slots of all heads along one axis."""
        columns, N, G = buffer.shape[:3]
        return buffer.view(columns, N * G * self.capacity, *buffer.shape[4:])

    def _heads(self, slots: Slots) -> Int[Tensor, "N G 1"]:
        """Index of each head's first slot, over all heads and slots."""
        if self._first_slots is None:
            N, G = slots.shape[:2]
            first = torch.arange(N * G, device=slots.device) * self.capacity
            self._first_slots = first.view(N, G, 1)
        return self._first_slots

    def _create(self, rows: Mapping[str, Tensor], floating: torch.dtype, capacity: int) -> None:
        self.capacity = capacity
        new = next(iter(rows.values()))
        kinds: dict[Kind, list[str]] = {}
        for name, added in rows.items():
            kinds.setdefault((added.dtype, tuple(added.shape[3:])), []).append(name)
        for name, column in self.state.items():
            kinds.setdefault((self._number_format(column, floating), ()), []).append(name)
        for kind, names in kinds.items():
            dtype, row = kind
            shape = (len(names), *new.shape[:2], capacity, *row)
            self.buffers[kind] = torch.empty(shape, dtype=dtype, device=new.device)
            self.places |= {name: (kind, number) for number, name in enumerate(names)}

    def _number_format(self, column: Column, floating: torch.dtype) -> torch.dtype:
        if self.wide:
            return torch.int64 if column.integer else torch.float64
        return torch.int32 if column.integer else floating

    def _resize(self, capacity: int) -> None:
        self.move_into(
            {
                kind: buffer.new_empty((*buffer.shape[:3], capacity, *buffer.shape[4:]))
                for kind, buffer in self.buffers.items()
            }
        )
