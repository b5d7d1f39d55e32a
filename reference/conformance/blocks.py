"""Building blocks that no method owns: attention, selection, codes, CAOTE's error, pooling."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvlab.reference.attention import attend, visible
from kvlab.reference.codes import Code
from kvlab.reference.conformance.expecting import exact, keep, largest, logit_size, numbers
from kvlab.reference.conformance.operation import answers
from kvlab.reference.conformance.vectors import Expected
from kvlab.reference.methods.caote import eviction_error, fast_eviction_error, remaining_mass
from kvlab.reference.methods.desirekv import outlier_score
from kvlab.reference.notation import Array
from kvlab.reference.precisions import OnArrival, precisions, turboquant
from kvlab.reference.quantization import Quantized, pack, quantize, unpack
from kvlab.reference.selection import keep_set
from kvlab.reference.windows import max_pool, mean_pool

SHARP = 2.0**-11
"""Largest relative error of a scale or zero point that is rounded to float16."""

DISTANCE = 2.0**-20
"""Error of a value's difference to a sum of values, relative to the largest value: 16 roundings of
float32."""

# --- attention and selection ---------------------------------------------------------------------


@answers("attend")
def _attend(queries, keys, values, positions, query_positions, softcap):
    output, _ = attend(queries, keys, values, visible(query_positions, positions), softcap)
    size = logit_size(queries, keys)
    return {"output": numbers(output, size, largest(values), terms=keys.shape[1])}


@answers("attention")
def _attention(queries, keys, positions, query_positions, softcap):
    _, attention = attend(queries, keys, keys, visible(query_positions, positions), softcap)
    return {"attention": numbers(attention, logit_size(queries, keys))}


@answers("received_attention")
def _received_attention(queries, keys, positions, query_positions, softcap):
    _, attention = attend(queries, keys, keys, visible(query_positions, positions), softcap)
    return {"received": numbers(attention.sum(axis=(1, 2)), logit_size(queries, keys))}


@answers("keep_set")
def _keep_set(scores, safe, room):
    return {"keep": keep(keep_set(scores, safe, room))}


@answers("compact")
def _compact(**given):
    rows = given["keep"]
    return {
        name: exact(np.take_along_axis(x, rows[..., None] if x.ndim == 3 else rows, axis=1))
        for name, x in given.items()
        if name != "keep"
    }


# --- codes of groups -----------------------------------------------------------------------------


@answers("quantize")
def _quantize(x, bits, group):
    stored = quantize(x, bits, group)
    return {
        "codes": exact(unpack(stored.codes, stored.bits, stored.length)),
        "scale": exact(stored.scale.astype(np.float64)),
        "zero": exact(stored.zero.astype(np.float64)),
    }


@answers("quantize_channels")
def _quantize_channels(x, bits, group):
    by_channel = _quantize(np.ascontiguousarray(x.T), bits, group)
    return {name: exact(each.value.T) for name, each in by_channel.items()}


def _read(codes: Array, scale: Array, zero: Array, bits: int, group: int) -> Array:
    packed = pack(codes.astype(np.uint8), bits)
    return Quantized(packed, scale, zero, bits, group, codes.shape[-1]).dequantize()


@answers("dequantize")
def _dequantize(codes, scale, zero, bits, group):
    vectors = _read(codes, scale, zero, bits, group)
    return {"x": numbers(vectors, scale=largest(vectors))}


def _few_levels(found: Mapping[str, Array], parameters: Mapping[str, Any]) -> str | None:
    """Say which group has more different numbers than codes, so that it was not quantised."""
    x, bits, group = found["x"], parameters["bits"], parameters["group"]
    for row, start in np.ndindex(len(x), -(-x.shape[-1] // group)):
        levels = len(np.unique(x[row, start * group : (start + 1) * group]))
        if levels > 2**bits:
            allowed = f"{bits} bits allow {2**bits}"
            return f"has {levels} different numbers in a group of row {row}, {allowed}"
    return None


@answers("quantize_dequantize", judge=_few_levels)
def _quantize_dequantize(x, bits, group):
    """Expect vectors at most half a step away, whatever format holds scale and zero point."""
    starts = np.arange(0, x.shape[-1], group)
    low = np.minimum.reduceat(x, starts, axis=-1)
    high = np.maximum.reduceat(x, starts, axis=-1)
    half_step = (high - low) / (2**bits - 1) / 2
    metadata = SHARP * (np.abs(low) + (high - low))
    slack = np.repeat(half_step + 2 * metadata, group, axis=-1)[..., : x.shape[-1]]
    return {"x": numbers(x, scale=largest(x), slack=slack)}


@answers("pack")
def _pack(codes, bits):
    return {"packed": exact(pack(codes.astype(np.uint8), bits))}


@answers("attend_coded")
def _attend_coded(queries, bits, group, softcap, **given):
    keys, values = (
        _read(given[f"{name}_codes"], given[f"{name}_scale"], given[f"{name}_zero"], bits, group)
        for name in ("key", "value")
    )
    output, _ = attend(queries, keys, values, None, softcap)
    return {"output": numbers(output, logit_size(queries, keys), largest(values))}


# --- pages ---------------------------------------------------------------------------------------


def _sequence_of(pages: Array, table: Array) -> Array:
    """Return the entries ``[G, n, d]`` of the pages that a block table names, in its order."""
    named = pages[table[table >= 0]]
    return named.reshape(-1, *named.shape[2:]).swapaxes(0, 1)


@answers("attend_pages")
def _attend_pages(queries, key_pages, value_pages, table, query_positions, softcap):
    there, page = np.flatnonzero(table >= 0), key_pages.shape[1]
    positions = (there[:, None] * page + np.arange(page)).ravel()
    written = positions <= query_positions.max()
    keys, values = (_sequence_of(x, table)[:, written] for x in (key_pages, value_pages))
    everywhere = np.tile(positions[written], (len(keys), 1))
    return _attend(queries, keys, values, everywhere, query_positions, softcap)


@answers("compact_pages")
def _compact_pages(key_pages, value_pages, table, keep):
    """Expect the survivors at the front of the pages, and the table without the free pages."""
    (G, kept), count, page = keep.shape, len(table), key_pages.shape[1]
    expected = {}
    for name, given in (("key_pages", key_pages), ("value_pages", value_pages)):
        pages = given.copy()
        rows = pages[table].reshape(count * page, G, -1)
        moved = np.stack([rows[keep[g], g] for g in range(G)], axis=1)
        rows[:kept] = moved
        pages[table] = rows.reshape(count, page, G, -1)
        matters = np.ones(pages.shape, dtype=bool)
        matters[table] = (np.arange(count * page) < kept).reshape(count, page, 1, 1)
        expected[name] = exact(pages, matters)
    return {**expected, "table": exact(table[: -(-kept // page)])}


# --- codes of a precision ------------------------------------------------------------------------


def code_of(precision: str) -> Code:
    """Return the code in which a precision stores keys."""
    found = precisions()[precision]
    assert isinstance(found, OnArrival)
    return found.keys


def matrices(precision: str, d: int) -> dict[str, Array]:
    """Return what ``turboquant`` draws for keys of d channels, and the centroids of its values."""
    stored = precisions()[precision]
    if not isinstance(stored, OnArrival) or not hasattr(stored.values, "seed"):
        return {}
    found, keys = {"rotation": turboquant.rotation(d, turboquant.SEED)}, stored.keys
    if isinstance(keys, turboquant.TurboQuantProd):
        found["projection"], keys = turboquant.projection(d, turboquant.SEED), keys.first
    widths = {"centroids": keys.bits, "value_centroids": stored.values.bits}
    return found | {name: turboquant.codebook(bits, d) for name, bits in widths.items()}


def encoded(code: Code, x: Array, first: Array) -> tuple[Array, tuple[Array, ...], Array | None]:
    """Return the unpacked codes, everything that is stored, and the scale of the layer, if any.

    Packed codes are stored first, then block scales or norms.
    """
    scale = code.scale(first)
    divided = x if scale is None else x / scale.astype(np.float64)
    packed, *further = code.encode(divided.reshape(-1, x.shape[-1]))
    codes = unpack(packed, code.bits, x.shape[-1])
    return codes.reshape(x.shape), (packed, *further), scale


@answers("encode")
def _encode(precision, x, first, **matrices):
    """Expect codes and block scales bit by bit, bytes, and the vectors read back."""
    code, (G, n, d) = code_of(precision), x.shape
    codes, parts, scale = encoded(code, x, first)
    vectors = code.decode(parts, d).reshape(x.shape) * (1.0 if scale is None else scale)
    expected: dict[str, Expected] = {"codes": exact(codes)}
    if scale is not None:
        expected["scale"] = numbers(scale.ravel().astype(np.float64))
    for part in parts[1:]:
        each = part.reshape(G, n, -1)
        if part.dtype == np.uint8:
            expected["block_scales"] = exact(each)
        else:
            slack = np.spacing(each).astype(np.float64)
            expected["norms"] = numbers(each.astype(np.float64), slack=slack)
            expected["codes"] = exact(codes, np.broadcast_to(each[..., :1] > 0, x.shape))
    far = largest(vectors)
    slack = None if scale is not None else np.full(x.shape, SHARP * far)
    size = sum(part[0].nbytes for part in parts)
    expected["bytes"] = Expected("at_most", np.full((G, n), size))
    expected["x"] = numbers(vectors, scale=far, slack=slack)
    return expected


# --- scores --------------------------------------------------------------------------------------


@answers("eviction_error")
def _eviction_error(h, values, fast, norm):
    """Expect distances; where values have much in common, that is lost in float32."""
    measure = fast_eviction_error if fast else eviction_error
    rest = remaining_mass(h)
    channels = values.shape[-1]
    lost = DISTANCE * largest(values) * channels ** (1 / norm)
    slack = lost * (h / np.where(rest > 0, rest, np.inf))
    return {"error": numbers(measure(h, values[:, None], norm), slack=slack)}


@answers("pool")
def _pool(x, kernel, pooling, border):
    pooled = max_pool(x, kernel) if pooling == "max" else mean_pool(x, kernel, border)
    return {"pooled": numbers(pooled)}


@answers("outlier_score")
def _outlier_score(x, over):
    return {"score": numbers(outlier_score(x, over), scale=largest(x))}
