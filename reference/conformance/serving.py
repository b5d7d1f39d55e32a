"""What a serving engine does beside a method: requests that share pages, states, slots, rotation.

Equations (numbered here):

1. s = q·k·scale, squeezed into ±softcap, over the entries that the request's table names, at or
   before the query's position and within its window
2. lse = log(e^sink + Σ e^s)
3. o = Σ e^(s − lse)·v; a query that sees no entry has o = 0, and lse = sink, or −∞ without one
4. of parts of the entries: lse = log Σ e^lseᵢ and o = Σ e^(lseᵢ − lse)·oᵢ
5. stored = e4m3(x / scale), read as scale·stored
6. a pair of channels at position p turns by the angle p·base^(−2i/rotated)
"""

from itertools import pairwise
from typing import Any

import numpy as np

from kvlab.reference.attention import visible
from kvlab.reference.codes import E4M3
from kvlab.reference.conformance.expecting import exact, largest, logit_size, numbers
from kvlab.reference.conformance.operation import answers
from kvlab.reference.files import read_data
from kvlab.reference.notation import Array
from kvlab.reference.streams import Source

ANGLE = 2.0**-21
"""Largest relative error of an angle in float32: eight roundings."""

# --- answers -------------------------------------------------------------------------------------


def _read(pages: Array, table: Array, positions: Array, scales: Array | None) -> Array:
    """Return the vectors ``[G, n, d]`` at some positions of a request."""
    page = pages.shape[1]
    vectors = pages[table[positions // page], positions % page].swapaxes(0, 1)
    return vectors if scales is None else vectors * scales[:, None, None]  # 5


@answers("attend_requests")
def _attend_requests(queries, query_starts, lengths, key_pages, value_pages, tables, **given):
    scale, softcap, window = (given[name] for name in ("scale", "softcap", "window"))
    sinks, key_scales, value_scales = map(given.get, ("sinks", "key_scales", "value_scales"))
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
        weights = np.exp(s - np.where(np.isneginf(total), 0.0, total))
        output[:, :, first:last] = weights @ values[:, None]  # 3
        lse[:, :, first:last] = total[..., 0]  # 2
        size = max(size, logit_size(q, keys) * np.sqrt(q.shape[-1]))
        furthest = max(furthest, largest(values))
    expected = numbers(output, size, furthest, terms=max(lengths))
    return {"output": expected, "lse": numbers(lse, size, 1.0, terms=max(lengths))}


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

TABLES = read_data("conformance/drawn.toml")["requests"]
"""Queries of each request, one after the other: none, where a batch is padded; and what sinks are
about."""


def _rounded(x: Array) -> Array:
    return E4M3.decode(E4M3.encode(x))


def _scales(x: Any) -> dict[str, Array]:
    """Return powers of two, because 16-bit formats hold the product with them exactly."""
    steps = np.arange(x.G) % 3 * (x.coded == "heads")
    if x.coded == "none":
        return {}
    return {"key_scales": 2.0 ** (-4 - steps), "value_scales": 2.0 ** (steps - 1)}


NEWEST = slice(None), -1
"""Place of the newest entry."""


def below_the_mask(x: dict[str, Array], keys: str = "keys", newest: Any = None) -> None:
    """Logits at and below −2^16, of few whole numbers: of more, float32 loses the differences."""
    for name in ("queries", keys):
        np.rint(x[name], out=x[name])
    x["queries"][..., 4:] = 0
    x["queries"][..., 0] = 256 * np.ceil(np.sqrt(x["queries"].shape[-1]))
    x[keys][..., 0] = -256.0


def above_the_mask(x: dict[str, Array], keys: str = "keys", newest: Any = NEWEST) -> None:
    """A logit of 2^17 or more, of the newest entry: whoever adds −10,000 does not hide it."""
    x["queries"][..., 0] = 256 * np.ceil(np.sqrt(x["queries"].shape[-1]))
    x[keys][..., 0] = 0.0
    x[keys][(*newest, ..., 0)] = 512.0


MASKS = {"below_the_mask": below_the_mask, "above_the_mask": above_the_mask}
"""What is changed where a mask hides entries, by variant."""


def requests_drawn(source: Source, x: Any) -> dict[str, Array]:
    """Draw requests over one memory: ``border`` places beyond the end of a page, or before it.

    After ``full`` pages and more come those of the queries. A ``hole`` is an evicted page right
    before those, ``shared`` a first page that all requests have, and the ``tail`` what stands in a
    table behind its end. Poisoned memory holds NaN where no request may read. Of ``blind`` requests
    the first has no page left, the second none from its first query's on, and so on in threes.
    """
    counts = np.resize(TABLES[x.rows], x.requests)
    whole = -(-(counts + 1) // x.page) + x.full + source.integers(0, 3, x.requests)
    lengths = (whole + 2 * x.hole + x.shared) * x.page + x.border
    tables, written = _tables(source, lengths, counts, x)
    inputs = {
        "queries": 2 * source.normal(x.G, x.rho, int(counts.sum()), x.d),
        "query_starts": np.cumsum([0, *counts]),
        "lengths": lengths,
        "key_pages": source.normal(*written.shape, x.G, x.d),
        "value_pages": 8 * source.normal(*written.shape, x.G, x.d),
        "tables": tables,
    }
    for name in ("key_pages", "value_pages"):
        if x.coded != "none":
            inputs[name] = _rounded(16 * inputs[name])
        if x.poisoned:
            inputs[name][~written] = np.nan
    if x.variant in MASKS:
        places, rows = np.divmod(lengths - 1, x.page)
        newest = tables[np.arange(len(tables)), places], rows
        MASKS[x.variant](inputs, "key_pages", newest)
    if x.sinks != "none":
        inputs["sinks"] = TABLES[x.sinks] + source.normal(x.G, x.rho)
    return inputs | _scales(x)


def _tables(source: Source, lengths: Array, counts: Array, x: Any) -> tuple[Array, Array]:
    """Return the requests' tables, and marks ``[pages, page]`` of the places that one reads."""
    page, places = x.page, -(-lengths // x.page)
    memory = source.permutation(int(places.sum()) + SPARE)
    shape = len(lengths), int(places.max()) + 2
    others = memory[source.integers(0, len(memory), *shape)] if x.tail == "others" else -1
    tables = np.broadcast_to(others, shape).copy()
    written = np.zeros((len(memory), page), dtype=bool)
    for number, (table, end, size, n, count) in enumerate(
        zip(tables, places.cumsum(), places, lengths, counts, strict=True)
    ):
        table[:size] = memory[end - size : end]
        first = (n - count) // page
        if x.shared and first > 0:
            table[0] = tables[0, 0]
        if x.hole and first > 1:
            table[first - 1] = -1
        if x.blind:
            table[(0, first, size)[number % 3] : size] = -1
        positions = np.arange(n)
        positions = positions[table[positions // page] >= 0]
        written[table[positions // page], positions % page] = True
    return tables, written


def move_up(inputs: dict[str, Array], below: int) -> None:
    """Put so many pages that nobody reads before the others, so that these have large numbers."""
    each = {"table": 1, "tables": 1, "slots": inputs["key_pages"].shape[1]}
    for name, x in inputs.items():
        if name in ("key_pages", "value_pages"):
            inputs[name] = np.concatenate([np.zeros((below, *x.shape[1:])), x])
        elif name in each:
            inputs[name] = np.where(x >= 0, x + below * each[name], x)


STATES = {
    "plain": lambda source, x: x,
    "equal": lambda source, x: np.zeros_like(x),
    "far_apart": lambda source, x: 64 * x,
    "beyond_exp": lambda source, x: x + 800 * (-1.0) ** np.arange(x.shape[-1]),
    "empty_states": lambda source, x: np.where(source.marks(1, *x.shape[::-1]).T, -np.inf, x),
    "thousands": lambda source, x: x + 2e4 * (-1.0) ** np.arange(x.shape[-1]),
    "millions": lambda source, x: np.rint(x) - 1e6 * (-1.0) ** np.arange(x.shape[-1]),
    "all_empty": lambda source, x: np.where(np.arange(x.shape[-1]) == 0, -np.inf, x),
}
"""What is changed about log-sum-exps, by variant."""


def states_drawn(source: Source, x: Any) -> dict[str, Array]:
    """Draw outputs of parts of the entries; a part without an entry has the output 0."""
    lses = STATES[x.variant](source, source.normal(x.states, x.G, x.rho, x.m))
    outputs = 8 * source.normal(x.states, x.G, x.rho, x.m, x.d)
    outputs[np.isneginf(lses)] = 0
    return {"outputs": outputs, "lses": lses}


SKIPPED = {
    "none": slice(0),
    "first": slice(1),
    "last": slice(-1, None),
    "some": slice(None, None, 2),
    "all": slice(None),
}
"""Tokens that are written nowhere."""


def writes_drawn(source: Source, x: Any) -> dict[str, Array]:
    """Draw tokens and the slots into which they go; those that are ``skipped`` have the slot −1.

    ``loud`` numbers lie beyond the largest code, ``faint`` ones among the subnormal codes.
    """
    pages = -(-x.t // x.page) + SPARE
    slots = source.permutation(pages * x.page)[: x.t]
    slots = np.sort(slots) if x.order == "ascending" else slots
    slots[SKIPPED[x.skipped]] = -1
    far = 2.0**-7 if x.faint else 512 if x.loud else 1
    inputs = {name: far * source.normal(x.G, x.t, x.d) for name in ("keys", "values")}
    for name in ("key_pages", "value_pages"):
        inputs[name] = _rounded(source.normal(pages, x.page, x.G, x.d))
    return {**inputs, "slots": slots, **_scales(x)}


def rotations_drawn(source: Source, x: Any) -> dict[str, Array]:
    """Draw vectors and their positions; ``back`` are negative ones, which turn a vector back."""
    positions, x.rotated = x.first + np.cumsum(source.integers(1, 4, x.n)), int(x.d * x.part)
    if x.order == "shuffled":
        positions = positions[source.permutation(x.n)]
    elif x.order == "repeated":
        positions = x.first + source.integers(0, 3, x.n)
    elif x.order == "back":
        positions = -positions
    return {"x": source.normal(x.G, x.n, x.d), "positions": positions}
