"""Building blocks that no method owns: attention, selection, codes, CAOTE's error, pooling."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from kvlab.reference.attention import attend, visible
from kvlab.reference.codes import Code
from kvlab.reference.conformance.case import Inputs, Parameters
from kvlab.reference.conformance.expecting import at_most, exact, keep, numbers
from kvlab.reference.conformance.operation import Operation, described_operation
from kvlab.reference.methods.caote import eviction_error, fast_eviction_error
from kvlab.reference.methods.desirekv import outlier_score
from kvlab.reference.notation import Array
from kvlab.reference.precisions import OnArrival, precisions
from kvlab.reference.precisions.turboquant import (
    TurboQuantMSE,
    TurboQuantProd,
    codebook,
    projection,
    rotation,
)
from kvlab.reference.quantization import Quantized, pack, quantize, unpack
from kvlab.reference.selection import keep_set
from kvlab.reference.windows import max_pool, mean_pool

SHARP = 2.0**-11
"""Largest relative error of a scale or zero point that is rounded to float16."""


def logit_size(queries: Array, keys: Array) -> float:
    """Return the largest Σ\\|q·k\\|/√d; the rounding error of a logit is relative to it."""
    products = np.abs(queries) @ np.abs(keys)[:, None].swapaxes(-1, -2)
    return float(products.max(initial=0.0) / np.sqrt(queries.shape[-1]))


def _attention_of(inputs: Inputs, parameters: Parameters) -> tuple[Array, Array]:
    mask = visible(inputs["query_positions"], inputs["positions"])
    softcap = parameters.get("softcap")
    values = inputs.get("values", inputs["keys"])
    return attend(inputs["queries"], inputs["keys"], values, mask, softcap)


def _expect_output(inputs: Inputs, parameters: Parameters, method: str | None):
    output, _ = _attention_of(inputs, parameters)
    size = logit_size(inputs["queries"], inputs["keys"])
    scale = float(np.abs(inputs["values"]).max())
    return {"output": numbers(output, size, scale)}


def _expect_attention(inputs: Inputs, parameters: Parameters, method: str | None):
    _, attention = _attention_of(inputs, parameters)
    return {"attention": numbers(attention, logit_size(inputs["queries"], inputs["keys"]))}


def _expect_received(inputs: Inputs, parameters: Parameters, method: str | None):
    """Expect the attention that every entry received from all rows of a block."""
    _, attention = _attention_of(inputs, parameters)
    size = logit_size(inputs["queries"], inputs["keys"])
    return {"received": numbers(attention.sum(axis=(1, 2)), size)}


def _expect_keep_set(inputs: Inputs, parameters: Parameters, method: str | None):
    return {"keep": keep(keep_set(inputs["scores"], inputs["safe"], parameters["room"]))}


def _expect_compacted(inputs: Inputs, parameters: Parameters, method: str | None):
    rows = inputs["keep"]
    return {
        name: exact(np.take_along_axis(x, rows[..., None] if x.ndim == 3 else rows, axis=1))
        for name, x in inputs.items()
        if name != "keep"
    }


def _expect_codes(inputs: Inputs, parameters: Parameters, method: str | None):
    stored = quantize(inputs["x"], parameters["bits"], parameters["group"])
    return {
        "codes": exact(unpack(stored.codes, stored.bits, stored.length)),
        "scale": exact(stored.scale.astype(np.float64)),
        "zero": exact(stored.zero.astype(np.float64)),
    }


def _expect_channel_codes(inputs: Inputs, parameters: Parameters, method: str | None):
    """Expect the codes of blocks of tokens, with one scale per channel."""
    x, group = inputs["x"], parameters["group"]
    if x.shape[0] % group:
        raise ValueError(f"tokens = {x.shape[0]} must be a multiple of group = {group}")
    stored = quantize(np.ascontiguousarray(x.T), parameters["bits"], group)
    return {
        "codes": exact(unpack(stored.codes, stored.bits, stored.length).T),
        "scale": exact(stored.scale.T.astype(np.float64)),
        "zero": exact(stored.zero.T.astype(np.float64)),
    }


def _stored_vectors(inputs: Inputs, parameters: Parameters, prefix: str = "") -> Array:
    found = inputs[f"{prefix}codes"].astype(np.uint8)
    bits, group, length = parameters["bits"], parameters["group"], found.shape[-1]
    scale, zero = inputs[f"{prefix}scale"], inputs[f"{prefix}zero"]
    groups = -(-length // group)
    if scale.shape[-1] != groups:
        raise ValueError(f"{prefix}scale must hold {groups} groups, got {scale.shape[-1]}")
    return Quantized(pack(found, bits), scale, zero, bits, group, length).dequantize()


def _expect_read(inputs: Inputs, parameters: Parameters, method: str | None):
    vectors = _stored_vectors(inputs, parameters)
    return {"x": numbers(vectors, scale=float(np.abs(vectors).max()))}


def _expect_faithful(inputs: Inputs, parameters: Parameters, method: str | None):
    """Expect vectors at most half a step away, whatever format holds scale and zero point."""
    x, bits, group = inputs["x"], parameters["bits"], parameters["group"]
    starts = np.arange(0, x.shape[-1], group)
    low = np.minimum.reduceat(x, starts, axis=-1)
    high = np.maximum.reduceat(x, starts, axis=-1)
    half_step = (high - low) / (2**bits - 1) / 2
    metadata = SHARP * (np.abs(low) + (high - low))
    slack = np.repeat(half_step + 2 * metadata, group, axis=-1)[..., : x.shape[-1]]
    return {"x": numbers(x, scale=float(np.abs(x).max()), slack=slack)}


def _few_levels(found: Mapping[str, Array], parameters: Parameters) -> str | None:
    """Say which group has more different numbers than codes, so that it was not quantised."""
    x, bits, group = found["x"], parameters["bits"], parameters["group"]
    for row, start in np.ndindex(len(x), -(-x.shape[-1] // group)):
        levels = len(np.unique(x[row, start * group : (start + 1) * group]))
        if levels > 2**bits:
            allowed = f"{bits} bits allow {2**bits}"
            return f"has {levels} different numbers in a group of row {row}, {allowed}"
    return None


def _expect_packed(inputs: Inputs, parameters: Parameters, method: str | None):
    return {"packed": exact(pack(inputs["codes"].astype(np.uint8), parameters["bits"]))}


def _expect_coded_output(inputs: Inputs, parameters: Parameters, method: str | None):
    """Expect the attention output of one token over entries that are stored as codes."""
    keys, values = (_stored_vectors(inputs, parameters, f"{name}_") for name in ("key", "value"))
    queries = inputs["queries"]
    mask = np.ones((len(keys), 1, 1, keys.shape[1]), dtype=bool)
    output, _ = attend(queries, keys, values, mask, parameters.get("softcap"))
    return {"output": numbers(output, logit_size(queries, keys), float(np.abs(values).max()))}


def _sequence_of(pages: Array, table: Array) -> Array:
    """Return the entries ``[G, n, d]`` of the pages that a block table names, in its order."""
    named = pages[table[table >= 0]]
    return named.reshape(-1, *named.shape[2:]).swapaxes(0, 1)


def _expect_paged_output(inputs: Inputs, parameters: Parameters, method: str | None):
    table, page = inputs["table"], inputs["key_pages"].shape[1]
    keys, values = (_sequence_of(inputs[f"{name}_pages"], table) for name in ("key", "value"))
    there = np.flatnonzero(table >= 0)
    positions = (there[:, None] * page + np.arange(page)).ravel()
    written = positions <= inputs["query_positions"].max()
    keys, values, positions = keys[:, written], values[:, written], positions[written]
    mask = visible(inputs["query_positions"], np.tile(positions, (len(keys), 1)))
    output, _ = attend(inputs["queries"], keys, values, mask, parameters.get("softcap"))
    size = logit_size(inputs["queries"], keys)
    return {"output": numbers(output, size, float(np.abs(values).max()))}


def _expect_moved(inputs: Inputs, parameters: Parameters, method: str | None):
    """Expect the survivors at the front of the pages, and the table without the free pages."""
    table, keep = inputs["table"], inputs["keep"]
    G, kept = keep.shape
    expected = {}
    for name in ("key_pages", "value_pages"):
        pages = inputs[name].copy()
        count, page = len(table), pages.shape[1]
        rows = pages[table].reshape(count * page, G, -1)
        moved = np.stack([rows[keep[g], g] for g in range(G)], axis=1)
        rows[:kept] = moved
        pages[table] = rows.reshape(count, page, G, -1)
        matters = np.ones(pages.shape, dtype=bool)
        matters[table] = (np.arange(count * page) < kept).reshape(count, page, 1, 1)
        expected[name] = exact(pages, matters)
    return {**expected, "table": exact(table[: -(-kept // inputs["key_pages"].shape[1])])}


def code_of(parameters: Parameters) -> Code:
    """Return the code in which a precision stores keys."""
    precision = precisions()[parameters["precision"]]
    assert isinstance(precision, OnArrival)
    return precision.keys


def encoded(code: Code, x: Array, first: Array) -> tuple[Array, tuple[Array, ...], Array | None]:
    """Return the unpacked codes, everything that is stored, and the scale of the layer, if any.

    Packed codes are stored first, then block scales or norms.
    """
    scale = code.scale(first)
    divided = x if scale is None else x / scale.astype(np.float64)
    packed, *further = code.encode(divided.reshape(-1, x.shape[-1]))
    codes = unpack(packed, code.bits, x.shape[-1])
    return codes, (packed, *further), scale


def _expect_encoded(inputs: Inputs, parameters: Parameters, method: str | None):
    """Expect codes and block scales bit by bit, bytes, and the vectors read back."""
    code, x = code_of(parameters), inputs["x"]
    G, n, d = x.shape
    codes, parts, scale = encoded(code, x, inputs["first"])
    vectors = code.decode(parts, d).reshape(x.shape) * (1.0 if scale is None else scale)
    expected = {"codes": exact(codes.reshape(x.shape))}
    if scale is not None:
        expected["scale"] = numbers(scale.ravel().astype(np.float64))
    for part in parts[1:]:
        each = part.reshape(G, n, -1)
        if part.dtype == np.uint8:
            expected["block_scales"] = exact(each)
        else:
            slack = np.spacing(each).astype(np.float64)
            expected["norms"] = numbers(each.astype(np.float64), slack=slack)
            directed = np.broadcast_to(each[..., :1] > 0, x.shape)
            expected["codes"] = exact(codes.reshape(x.shape), directed)
    size = sum(part[0].nbytes for part in parts)
    far = float(np.abs(vectors).max())
    slack = None if scale is not None else np.full(x.shape, SHARP * far)
    return {
        **expected,
        "bytes": at_most(np.full((G, n), size)),
        "x": numbers(vectors, scale=far, slack=slack),
    }


def with_matrices(inputs: Inputs, parameters: Parameters, method: str | None) -> Inputs:
    """Return the inputs with the matrices and centroids that belong to their channels."""
    code, d = code_of(parameters), inputs["x"].shape[-1]
    found = {name: inputs[name] for name in ("x", "first")}
    if isinstance(code, TurboQuantMSE | TurboQuantProd):
        bits = code.width - isinstance(code, TurboQuantProd)
        found |= {"rotation": rotation(d, code.seed), "centroids": codebook(bits, d)}
    if isinstance(code, TurboQuantProd):
        found["projection"] = projection(d, code.seed)
    return found


def _normalised(inputs: Inputs, parameters: Parameters, method: str | None) -> Inputs:
    """Make every row of retention add up to 1 again.

    Raises:
        ValueError: if a row has a negative element, or only zeros.
    """
    h = inputs["h"]
    sums = h.sum(axis=-1, keepdims=True)
    if (h < 0).any() or (sums <= 0).any():
        raise ValueError("h must be at least 0, and no row may hold only zeros")
    return {**inputs, "h": h / sums}


def _expect_errors(inputs: Inputs, parameters: Parameters, method: str | None):
    measure = fast_eviction_error if parameters["fast"] else eviction_error
    errors = measure(inputs["h"], inputs["values"][:, None], parameters["norm"])
    return {"error": numbers(errors)}


def _expect_pooled(inputs: Inputs, parameters: Parameters, method: str | None):
    x, kernel = inputs["x"], parameters["kernel"]
    if parameters["pooling"] == "max":
        return {"pooled": numbers(max_pool(x, kernel))}
    return {"pooled": numbers(mean_pool(x, kernel, parameters["border"]))}


def _expect_outlier_scores(inputs: Inputs, parameters: Parameters, method: str | None):
    """Expect the mean distance of each vector's outliers to its mean."""
    found: Float[Array, " rows"] = outlier_score(inputs["x"], parameters["over"])
    return {"score": numbers(found, scale=float(np.abs(inputs["x"]).max()))}


OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        described_operation("attend", _expect_output),
        described_operation("attention", _expect_attention),
        described_operation("received_attention", _expect_received),
        described_operation("keep_set", _expect_keep_set),
        described_operation("compact", _expect_compacted),
        described_operation("quantize", _expect_codes),
        described_operation("quantize_channels", _expect_channel_codes),
        described_operation("dequantize", _expect_read),
        described_operation("quantize_dequantize", _expect_faithful, judge=_few_levels),
        described_operation("pack", _expect_packed),
        described_operation("attend_coded", _expect_coded_output),
        described_operation("attend_pages", _expect_paged_output),
        described_operation("compact_pages", _expect_moved),
        described_operation("encode", _expect_encoded, with_matrices),
        described_operation("eviction_error", _expect_errors, _normalised),
        described_operation("pool", _expect_pooled),
        described_operation("outlier_score", _expect_outlier_scores),
    )
}
"""All building blocks by name."""
