"""What a serving engine does beside a method: requests that share pages, states, slots, rotation.

Equations (numbered here):

1. s = q·k·scale, squeezed into ±softcap, over the entries that the request's table names, at or
   before the query's position and within its window
2. lse = log(e^sink + Σ e^s)
3. o = Σ e^(s − lse)·v
4. of parts of the entries: lse = log Σ e^lseᵢ and o = Σ e^(lseᵢ − lse)·oᵢ
5. stored = e4m3(x / scale), read as scale·stored
6. a pair of channels at position p turns by the angle p·base^(−2i/rotated)
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from kvlab.reference.attention import visible
from kvlab.reference.codes import E4M3
from kvlab.reference.conformance.expecting import exact, largest, logit_size, numbers
from kvlab.reference.conformance.operation import answers
from kvlab.reference.notation import Array
from kvlab.reference.streams import Source

Drawn = tuple[dict[str, Array], dict[str, Any]]

ANGLE = 2.0**-21
"""Largest relative error of an angle in float32: eight roundings."""

# --- answers -------------------------------------------------------------------------------------


def _read(pages: Array, table: Array, positions: Array, scales: Array | None) -> Array:
    """Return the vectors ``[G, n, d]`` at some positions of a request."""
    page = pages.shape[1]
    vectors = pages[table[positions // page], positions % page].swapaxes(0, 1)
    return vectors if scales is None else vectors * scales[:, None, None]  # 5


@answers("attend_requests")
def _attend_requests(
    queries,
    query_starts,
    lengths,
    key_pages,
    value_pages,
    tables,
    scale,
    softcap,
    window,
    sinks=None,
    key_scales=None,
    value_scales=None,
):
    output, lse = np.zeros(queries.shape), np.zeros(queries.shape[:-1])
    scale = queries.shape[-1] ** -0.5 if scale is None else scale
    size = furthest = 0.0
    for (first, last), n, table in zip(pairwise(query_starts), lengths, tables, strict=True):
        asked, positions = np.arange(n - (last - first), n), np.arange(n)
        positions = positions[table[positions // key_pages.shape[1]] >= 0]
        keys = _read(key_pages, table, positions, key_scales)
        values = _read(value_pages, table, positions, value_scales)
        q = queries[:, :, first:last] * scale
        s = q @ keys[:, None].swapaxes(-1, -2)  # 1
        s = s if softcap is None else softcap * np.tanh(s / softcap)
        seen = visible(asked, positions[None])
        if window is not None:
            seen = seen & (positions > asked[:, None] - window)
        s = np.where(seen, s, -np.inf)
        sink = np.full((*s.shape[:2], 1, 1), -np.inf) if sinks is None else sinks[..., None, None]
        total = np.logaddexp(np.logaddexp.reduce(s, axis=-1, keepdims=True, initial=-np.inf), sink)
        output[:, :, first:last] = np.exp(s - total) @ values[:, None]  # 3
        lse[:, :, first:last] = total[..., 0]  # 2
        size = max(size, logit_size(q, keys) * np.sqrt(q.shape[-1]))
        furthest = max(furthest, largest(values))
    return {"output": numbers(output, size, furthest), "lse": numbers(lse, size, 1.0)}


@answers("merge_states")
def _merge_states(outputs, lses):
    lse = np.logaddexp.reduce(lses, axis=0)
    weights = np.exp(lses - np.where(np.isneginf(lse), 0.0, lse))  # 4
    output = (weights[..., None] * outputs).sum(axis=0)
    size = largest(lse[np.isfinite(lse)])
    return {"output": numbers(output, size, largest(outputs)), "lse": numbers(lse, scale=1.0)}


@answers("write_pages")
def _write_pages(keys, values, slots, key_pages, value_pages, key_scales=None, value_scales=None):
    there, expected = slots >= 0, {}
    for name, new, pages, scales in (
        ("key_pages", keys, key_pages, key_scales),
        ("value_pages", values, value_pages, value_scales),
    ):
        stored, after = new[:, there].swapaxes(0, 1), pages.copy()
        if scales is not None:
            stored = _rounded(stored / scales[:, None])  # 5
        after.reshape(-1, *pages.shape[2:])[slots[there]] = stored
        expected[name] = exact(after)
    return expected


@answers("rotate")
def _rotate(x, positions, base, rotated, neighbours):
    angles = positions[:, None] * base ** (-np.arange(0, rotated, 2) / rotated)  # 6
    half = rotated // 2
    first, second = slice(half), slice(half, rotated)
    if neighbours:
        first, second = slice(0, rotated, 2), slice(1, rotated, 2)
    a, b = x[..., first], x[..., second]
    turned, slack = x.copy(), np.zeros(x.shape)
    turned[..., first] = a * np.cos(angles) - b * np.sin(angles)
    turned[..., second] = b * np.cos(angles) + a * np.sin(angles)
    slack[..., first] = slack[..., second] = ANGLE * np.abs(angles) * np.hypot(a, b)
    return {"x": numbers(turned, scale=largest(x), slack=slack)}


# --- drawing -------------------------------------------------------------------------------------

SPARE = 3
"""Pages that belong to no request."""

ROWS = {"one": (1,), "chunks": (2, 7, 3), "mixed": (1, 0, 7, 1, 2)}
"""Queries of each request, one after the other: none, where a batch is padded."""

SINKS = {"none": None, "plain": 0.0, "large": 8.0}


def _rounded(x: Array) -> Array:
    return E4M3.decode(E4M3.encode(x))


def _scales(coded: str, G: int) -> dict[str, Array]:
    """Return powers of two, because 16-bit formats hold the product with them exactly."""
    steps = np.arange(G) % 3 * (coded == "heads")
    return {"key_scales": 2.0 ** (-4 - steps), "value_scales": 2.0 ** (steps - 1)}


def requests_drawn(
    source: Source,
    requests: int,
    rows: str,
    page: int,
    full: int,
    border: int,
    G: int,
    rho: int,
    d: int,
    window: int = 0,
    sinks: str = "none",
    scale: float = 0,
    softcap: float = 0,
    coded: str = "none",
    hole: bool = False,
    shared: bool = False,
    tail: str = "others",
    poisoned: bool = False,
) -> Drawn:
    """Draw requests over one memory: ``border`` places beyond the end of a page, or before it.

    After ``full`` pages and more come those of the queries. A ``hole`` is an evicted page right
    before those, ``shared`` a first page that all requests have, and the ``tail`` what stands in a
    table behind its end. Poisoned memory holds NaN where no request may read.
    """
    counts = np.resize(ROWS[rows], requests)
    whole = -(-(counts + 1) // page) + full + source.integers(0, 3, requests)
    lengths = (whole + 2 * hole + shared) * page + border
    tables, written = _tables(source, lengths, counts, page, hole, shared, tail)
    inputs = {
        "queries": 2 * source.normal(G, rho, int(counts.sum()), d),
        "query_starts": np.cumsum([0, *counts]),
        "lengths": lengths,
        "key_pages": source.normal(*written.shape, G, d),
        "value_pages": 8 * source.normal(*written.shape, G, d),
        "tables": tables,
    }
    for name in ("key_pages", "value_pages"):
        if coded != "none":
            inputs[name] = _rounded(16 * inputs[name])
        if poisoned:
            inputs[name][~written] = np.nan
    if coded != "none":
        inputs |= _scales(coded, G)
    if SINKS[sinks] is not None:
        inputs["sinks"] = SINKS[sinks] + source.normal(G, rho)
    return inputs, {"scale": scale or None, "softcap": softcap or None, "window": window or None}


def _tables(
    source: Source,
    lengths: Array,
    counts: Array,
    page: int,
    hole: bool,
    shared: bool,
    tail: str,
) -> tuple[Array, Array]:
    """Return the requests' tables, and marks ``[pages, page]`` of the places that one reads."""
    places = -(-lengths // page)
    memory = source.permutation(int(places.sum()) + SPARE)
    shape = len(lengths), int(places.max()) + 2
    others = tail == "others"
    tables = memory[source.integers(0, len(memory), *shape)] if others else np.full(shape, -1)
    written = np.zeros((len(memory), page), dtype=bool)
    for table, end, size, n, count in zip(
        tables, places.cumsum(), places, lengths, counts, strict=True
    ):
        table[:size] = memory[end - size : end]
        first = (n - count) // page
        if shared and first > 0:
            table[0] = tables[0, 0]
        if hole and first > 1:
            table[first - 1] = -1
        positions = np.arange(n)
        positions = positions[table[positions // page] >= 0]
        written[table[positions // page], positions % page] = True
    return tables, written


STATES: Mapping[str, Any] = {
    "plain": lambda source, x: x,
    "equal": lambda source, x: np.zeros_like(x),
    "far_apart": lambda source, x: 64 * x,
    "beyond_exp": lambda source, x: x + 800 * (-1.0) ** np.arange(x.shape[-1]),
    "empty_states": lambda source, x: np.where(source.marks(1, *x.shape[::-1]).T, -np.inf, x),
    "all_empty": lambda source, x: np.where(np.arange(x.shape[-1]) == 0, -np.inf, x),
}
"""What is changed about log-sum-exps, by variant."""


def states_drawn(
    source: Source, states: int, G: int, rho: int, m: int, d: int, variant: str = "plain"
) -> Drawn:
    """Draw outputs of parts of the entries; a part without an entry has the output 0."""
    lses = STATES[variant](source, source.normal(states, G, rho, m))
    outputs = 8 * source.normal(states, G, rho, m, d)
    outputs[np.isneginf(lses)] = 0
    return {"outputs": outputs, "lses": lses}, {}


def writes_drawn(
    source: Source,
    t: int,
    page: int,
    G: int,
    d: int,
    order: str = "ascending",
    skipped: str = "none",
    coded: str = "none",
    loud: bool = False,
    faint: bool = False,
) -> Drawn:
    """Draw tokens and the slots into which they go; those that are ``skipped`` have the slot −1.

    ``loud`` numbers lie beyond the largest code, ``faint`` ones among the subnormal codes.
    """
    pages = -(-t // page) + SPARE
    slots = source.permutation(pages * page)[:t]
    slots = np.sort(slots) if order == "ascending" else slots
    skips = {
        "none": [],
        "first": [0],
        "last": [t - 1],
        "some": [*range(0, t, 2)],
        "all": [*range(t)],
    }
    slots[skips[skipped]] = -1
    far = 2.0**-7 if faint else 512 if loud else 1
    inputs = {"keys": far * source.normal(G, t, d), "values": far * source.normal(G, t, d)}
    inputs |= {
        f"{name}_pages": _rounded(source.normal(pages, page, G, d)) for name in ("key", "value")
    }
    return {**inputs, "slots": slots, **({} if coded == "none" else _scales(coded, G))}, {}


def rotations_drawn(
    source: Source,
    G: int,
    n: int,
    d: int,
    order: str = "ascending",
    first: int = 0,
    base: float = 10000.0,
    part: float = 1,
    neighbours: bool = False,
) -> Drawn:
    """Draw vectors and their positions; ``back`` are negative ones, which turn a vector back."""
    positions = first + np.cumsum(source.integers(1, 4, n))
    if order == "shuffled":
        positions = positions[source.permutation(n)]
    elif order == "repeated":
        positions = first + source.integers(0, 3, n)
    elif order == "back":
        positions = -positions
    told = {"base": base, "rotated": int(d * part), "neighbours": neighbours}
    return {"x": source.normal(G, n, d), "positions": positions}, told
