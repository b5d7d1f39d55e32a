"""What a block of queries sees, and the attention that a score needs of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.engine.cache import BatchClock, LayerCache
from kvlab.fast.kernels.attention import (
    Reduction,
    attend_without_weights,
    logits,
    reduce_group,
    softmax,
    visible,
    weighted_values,
)
from kvlab.fast.kernels.decode import RecurrenceCounters, decode_attention
from kvlab.fast.kernels.mixed_precision import attend_to_tables
from kvlab.fast.kernels.notation import (
    Marks,
    PerEntry,
    Positions,
    Probabilities,
    Queries,
    QueryPositions,
    Vectors,
)
from kvlab.fast.kernels.vector_tables import VectorTable
from kvlab.reference import policy as reference
from kvlab.reference.attention import GroupReduction

MOST_WEIGHTS = 2**24
"""Attention probabilities of one layer that are in memory at once: 64 MiB in float32."""


Rotate = Callable[[Tensor, Tensor], Tensor]
"""Rotates vectors by a number of positions (RoPE)."""


@dataclass(frozen=True)
class Needs(reference.Needs):
    """What a score reads of a block, and what may be done for it meanwhile."""

    counters: Callable[[Callable[[str], Tensor]], RecurrenceCounters] | None = None
    """Makes of columns, which it gets by name, the counters that attention to one token may update
    in place of `Score.observe`."""
    output: bool = False
    """Whether the newest token's attention output is read, beside the last row."""

    @property
    def reduction(self) -> Reduction:
        """How kernels join the query heads of a KV head."""
        return "none" if self.heads == "apart" else self.heads

    @property
    def sums(self) -> GroupReduction | None:
        """How query heads are joined, if only sums over a block's rows are read; None if not."""
        return self.heads if self.sums_rows and self.heads != "apart" else None

    def reads(self, clock: BatchClock) -> str:
        """Say which rows of a block's attention are read: ``all``, ``last`` or ``none``."""
        return self.rows if self.prompt or not clock.prefilling else "none"


@dataclass(eq=False)
class LayerView:
    """The entries of a cache, or of some of its sequences, as attention reads them."""

    cache: LayerCache
    softcap: float | None = None
    """Bound of the model's attention logits, if it has one."""
    sequences: tuple[int, int] | None = None
    """The first of some consecutive sequences, and how many; None: all of them."""
    only_block: bool = False
    """Whether slot i is the block's token i, and there are no others."""
    repositioned: bool = False
    """Whether the keys are rotated to other positions than those of their tokens."""
    read: dict[str, Vectors] = field(default_factory=dict)
    """Keys and values that are read in place of the stored ones: decoded, rotated, or from where an
    engine has them (`ReadWhenAsked`)."""

    def column(self, name: str) -> Tensor:
        """Return positions, a column of the state, or keys or values as stored or decoded."""
        if name in self.read:
            return self.read[name]
        if self.sequences is not None:
            return self.cache.columns.of_sequences(name, *self.sequences)
        if self.cache.mixed is not None and name in ("keys", "values"):
            self.read[name] = self.cache.decoded(name)
            return self.read[name]
        return self.cache.columns[name]

    @cached_property
    def positions(self) -> Positions:
        """Absolute position of each entry, -1 where a slot is empty."""
        return self.column("positions")

    @cached_property
    def keys(self) -> Vectors:
        """Keys in the number format of the computation."""
        return self.column("keys").to(self.cache.dtype)

    @cached_property
    def values(self) -> Vectors:
        """Values in the number format of the computation."""
        return self.column("values").to(self.cache.dtype)

    def vectors(self) -> tuple[Vectors, Vectors]:
        """Return keys and values as stored or decoded."""
        if self.sequences is not None and not self.read:
            return self.cache.columns.vectors_of(*self.sequences)
        return self.column("keys"), self.column("values")

    def fused(self) -> tuple[Vectors, Vectors]:
        """Return keys and values as PyTorch's fused kernels read them on this device."""
        keys, values = self.vectors()
        as_stored = keys.is_cuda or keys.dtype == self.cache.dtype
        return (keys, values) if as_stored else (self.keys, self.values)


class ReadWhenAsked(dict[str, Vectors]):
    """Keys and values that are read when a score asks for them first."""

    def __init__(self, read: Callable[[str], Vectors]) -> None:
        super().__init__()
        self._read = read

    def __contains__(self, name: object) -> bool:
        return name in ("keys", "values")

    def __missing__(self, name: str) -> Vectors:
        self[name] = self._read(name)
        return self[name]


def reposition(
    queries: Queries, view: LayerView, seen: Int[Tensor, "N 1 1"], rotate: Rotate
) -> tuple[Queries, LayerView]:
    """Rotate queries and keys to the index of their entry among the present ones.

    ``seen``: tokens of each sequence so far.
    """
    positions = view.positions
    places = torch.arange(positions.shape[-1], dtype=torch.int32, device=positions.device)
    index = torch.empty_like(positions).scatter_(
        -1, positions.argsort(dim=-1), places.expand_as(positions)
    )
    index = index - (positions < 0).sum(dim=-1, keepdim=True, dtype=torch.int32)
    entries = (positions[:, :1] >= 0).sum(dim=-1, keepdim=True, dtype=torch.int32)
    shift = (entries - seen)[..., None].expand(-1, 1, 1, queries.shape[3])
    keys = rotate(view.keys, index - positions)
    view = LayerView(view.cache, view.softcap, repositioned=True, read={"keys": keys})
    return rotate(queries, shift), view


@dataclass(eq=False)
class Attended:
    """Attention that some rows pay to every entry, as far as a score reads it."""

    weights: Probabilities | None = None
    """Probabilities of every query head."""
    received: PerEntry | None = None
    """Probabilities joined as `Needs` say, in place of ``weights``."""
    counted: bool = False
    """Whether the counters have been updated."""
    output: Float[Tensor, "N G rho 1 d"] | None = None
    """Attention output of the newest token, if the score reads that token's attention alone."""

    @classmethod
    def of_all(cls, layers: Sequence["Attended"]) -> "Attended":
        """Join what several layers gave along the batch axis."""
        first = layers[0]
        if len(layers) == 1:
            return first
        found = {}
        for name in ("weights", "received", "output"):
            if getattr(first, name) is not None:
                found[name] = joined([getattr(layer, name) for layer in layers])
        return cls(counted=first.counted, **found)


def joined(layers: Sequence[Tensor]) -> Tensor:
    """Join tensors along the batch axis; one alone is not copied."""
    return layers[0] if len(layers) == 1 else torch.cat(list(layers))


def attend_as_needed(
    needs: Needs,
    read: bool,
    queries: Queries,
    query_positions: QueryPositions | None,
    view: LayerView,
) -> tuple[Queries, Attended]:
    """Attend, and find in the same pass what a score needs: the computation is chosen here.

    ``queries`` are some rows of a block. Unless the score reads them, only the output is computed.
    Without positions they are the newest token alone, which reads every entry.
    """
    if query_positions is None:
        coded = view.cache.mixed is not None and not view.repositioned
        tables = view.cache.tables() if coded else None
        if view.cache.triton or tables is not None:
            reduce = needs.reduction if read else "skip"
            return _attend_from_newest(needs, reduce, queries, view, tables)
    mask = None
    if query_positions is not None:
        mask = visible(query_positions, view.positions)
    elif view.cache.ragged:
        mask = (view.positions >= 0)[:, :, None, None]
    if not read and view.softcap is None:
        return attend_without_weights(queries, *view.fused(), mask), Attended()
    keys, values = view.vectors()
    dtype = view.cache.dtype
    weights = softmax(logits(queries, keys.to(dtype), view.softcap), mask)
    output = weighted_values(weights, values.to(dtype))
    newest = output if needs.output and query_positions is None else None
    return output, Attended(weights, output=newest) if read else Attended()


def _attend_from_newest(
    needs: Needs,
    reduce: Reduction,
    queries: Float[Tensor, "N G rho 1 d"],
    view: LayerView,
    tables: tuple[list[VectorTable], list[VectorTable]] | None,
) -> tuple[Queries, Attended]:
    """Attend from the newest token by the kernels that also join probabilities and count.

    The output is in the number format of the queries; a score reads the ``exact`` one, in that of
    the computation.
    """
    joins, counters, exact = reduce not in ("none", "skip"), None, None
    if tables is not None:
        partners = view.cache.partners() if view.cache.triton else None
        given = queries.to(view.cache.dtype) if needs.output else queries
        exact, found = attend_to_tables(
            given, *tables, len(view.cache), view.softcap, reduce, partners
        )
        output = exact.to(queries.dtype)
    else:
        if joins and needs.counters is not None:
            counters = needs.counters(view.column)
        positions = view.positions if view.cache.ragged else None
        keys, values = view.vectors()
        if needs.output:
            exact = torch.empty(queries.shape, dtype=view.cache.dtype, device=queries.device)
        output, found = decode_attention(
            queries, keys, values, positions, view.softcap, reduce, counters, exact
        )
    return output, Attended(
        weights=found if reduce == "none" else None,
        received=found if joins else None,
        counted=counters is not None,
        output=exact if needs.output else None,
    )


def parts(queries: Queries, entries: int, rows: int | None = None) -> list[slice]:
    """Cut the queries into parts of at most ``rows`` whose attention stays below `MOST_WEIGHTS`."""
    N, G, rho, m, _ = queries.shape
    size = min(rows or m, max(1, MOST_WEIGHTS // max(1, N * G * rho * entries)))
    return [slice(first, min(first + size, m)) for first in range(0, m, size)]


@dataclass(eq=False)
class Observation:
    """What a block of queries, or a part of it, saw in one layer."""

    clock: BatchClock
    numbers: Sequence[int]
    """Number in the model of each layer that shares the cache."""
    layers: int
    """Layers of the model."""
    given_queries: Queries
    query_positions: QueryPositions
    view: LayerView
    confidence: Float[Tensor, "_ t"]
    attended: Attended = field(default_factory=Attended)
    """Attention that the queries pay to every entry, for a score that reads it."""
    hidden_states: Float[Tensor, "N m D"] | None = None
    """As in the reference, in the number format of the computation, for a score that reads them."""
    rotations: Sequence[Rotate] = ()
    """The rotary embedding of each layer, for a score that reads them."""
    projections: Sequence[Float[Tensor, "G rho d D"]] = ()
    """The output projection of each layer, cut by query heads, for a score that reads them."""
    model: Any = None
    """The model that computes, for a score that reads hidden states."""
    memo: dict[Any, Any] = field(default_factory=dict)
    """Results that were computed from this observation and are used again."""

    @cached_property
    def queries(self) -> Queries:
        """Queries in the number format of the computation."""
        return self.given_queries.to(self.cache.dtype)

    @property
    def layer(self) -> int:
        """Number of the layer in the model; -1 for all layers together."""
        return self.numbers[0] if len(self.numbers) == 1 else -1

    @cached_property
    def cache(self) -> LayerCache:
        """The cache that holds the present entries."""
        return self.view.cache

    @property
    def positions(self) -> Positions:
        """Absolute position of each entry, -1 where a slot is empty."""
        return self.view.positions

    @property
    def keys(self) -> Vectors:
        """Keys of the present entries."""
        return self.view.keys

    @property
    def values(self) -> Vectors:
        """Values of the present entries."""
        return self.view.values

    @property
    def present(self) -> Marks:
        """Slots that hold an entry."""
        return self.positions >= 0

    @property
    def bits(self) -> Positions:
        """Bits per element of the stored keys."""
        return self.cache.bits()

    @property
    def attention(self) -> Probabilities:
        """Attention probabilities of the rows that the score reads."""
        if self.attended.weights is None:
            raise RuntimeError("attention was not computed: see Needs")
        return self.attended.weights

    def received(self, how: GroupReduction) -> Float[Tensor, "N G _ n"]:
        """Return what every entry received from each row; ``how`` is what `Needs` say.

        If the score reads only sums, the result has one row: the sum of all rows.
        """
        if self.attended.received is not None:
            return self.attended.received[:, :, None]
        return reduce_group(self.attention, how)

    def logits(self, queries: Float[Tensor, "N G rho w d"]) -> Float[Tensor, "N G rho w n"]:
        """Logits of these queries over the present entries, as the model computes them."""
        return logits(queries, self.keys, self.view.softcap)

    def rotate(self, vectors: Tensor, by: Tensor) -> Tensor:
        """Rotate vectors ``[N, ..., d]`` by positions ``[N or 1, ...]``, as each layer does."""
        layers = len(self.rotations)
        by = by.expand(len(vectors), *by.shape[1:])
        given = zip(self.rotations, vectors.chunk(layers), by.chunk(layers), strict=True)
        return joined([rotate(*own) for rotate, *own in given])

    def projected_lengths(self) -> PerEntry:
        """Return the mean over query heads of ‖v_j W_O^h‖, a value's length as each layer projects.

        Its square is v_j W_O^h (W_O^h)ᵀ v_jᵀ: no vector of the model's width is made.
        """
        squares, layers = [], self.values.chunk(len(self.projections))
        for projection, values in zip(self.projections, layers, strict=True):
            weights, values = projection.to(values), values[:, :, None]
            squares.append((values @ (weights @ weights.mT) * values).sum(dim=-1))
        return joined(squares).clamp(min=0).sqrt().mean(dim=2)

    def part(self, rows: slice, attended: Attended) -> "Observation":
        """Return what some rows of the block saw."""
        return replace(
            self,
            given_queries=self.given_queries[:, :, :, rows],
            query_positions=self.query_positions[:, rows],
            attended=attended,
            hidden_states=None if self.hidden_states is None else self.hidden_states[:, rows],
        )

    def at_entries(self, found: Float[Tensor, "N G m"], others: PerEntry) -> PerEntry:
        """Return what was found for the block's tokens at their entries, ``others`` at the rest."""
        m = found.shape[2]
        token = self.positions - self.query_positions[:, -1, None, None] + m - 1
        padding = (self.query_positions < 0).sum(dim=1)[:, None, None]
        of_block = self.present & (token >= padding) & (token < m)
        return torch.where(of_block, found.gather(2, token.clamp(0, m - 1).long()), others)
