"""Building blocks that no method owns: attention, selection, codes, CAOTE's error, pooling."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from kvlab.reference.attention import attend, visible
from kvlab.reference.conformance.case import Inputs, Parameters
from kvlab.reference.conformance.expecting import exact, keep, numbers
from kvlab.reference.conformance.operation import Operation, codes, floats, marks, whole
from kvlab.reference.methods.caote import eviction_error, fast_eviction_error
from kvlab.reference.methods.desirekv import outlier_score
from kvlab.reference.notation import Array
from kvlab.reference.quantization import Quantized, pack, quantize, unpack
from kvlab.reference.selection import keep_set
from kvlab.reference.windows import max_pool, mean_pool

QUERIES = floats("G", "rho", "m", "d", meaning="queries; logits are q·k/√d")
KEYS = floats("G", "n", "d", meaning="keys of the entries")
VALUES = floats("G", "n", "d", meaning="values of the entries")
POSITIONS = whole("G", "n", meaning="absolute positions of the entries, ascending")
QUERY_POSITIONS = whole(
    "m", meaning="absolute positions of the queries; a query sees entries at or before its own"
)
SOFTCAP = {"softcap": "bound into which logits are squeezed, softcap·tanh(logit/softcap); or none"}

SHARP = 2.0**-11
"""Largest relative error of a scale or zero point that is rounded to float16."""


def logit_size(queries: Array, keys: Array) -> float:
    """Largest Σ\\|q·k\\|/√d: what the rounding of a logit is relative to."""
    products = np.abs(queries) @ np.abs(keys)[:, None].swapaxes(-1, -2)
    return float(products.max(initial=0.0) / np.sqrt(queries.shape[-1]))


def attention_of(inputs: Inputs, parameters: Parameters) -> tuple[Array, Array]:
    """Return output and probabilities of the inputs' queries."""
    mask = visible(inputs["query_positions"], inputs["positions"])
    softcap = parameters.get("softcap")
    values = inputs.get("values", inputs["keys"])
    return attend(inputs["queries"], inputs["keys"], values, mask, softcap)


def expect_output(inputs: Inputs, parameters: Parameters, method: str | None):
    """Attention output."""
    output, _ = attention_of(inputs, parameters)
    size = logit_size(inputs["queries"], inputs["keys"])
    scale = float(np.abs(inputs["values"]).max())
    return {"output": numbers(output, size, scale)}


def expect_attention(inputs: Inputs, parameters: Parameters, method: str | None):
    """Attention probabilities."""
    _, attention = attention_of(inputs, parameters)
    return {"attention": numbers(attention, logit_size(inputs["queries"], inputs["keys"]))}


def expect_received(inputs: Inputs, parameters: Parameters, method: str | None):
    """Return what every entry got from all rows of a block."""
    _, attention = attention_of(inputs, parameters)
    size = logit_size(inputs["queries"], inputs["keys"])
    return {"received": numbers(attention.sum(axis=(1, 2)), size)}


def expect_keep_set(inputs: Inputs, parameters: Parameters, method: str | None):
    """Keep set of given scores: only one answer is right."""
    return {"keep": keep(keep_set(inputs["scores"], inputs["safe"], parameters["room"]))}


def expect_compacted(inputs: Inputs, parameters: Parameters, method: str | None):
    """Survivors, moved together."""
    rows = inputs["keep"]
    return {
        name: exact(np.take_along_axis(x, rows[..., None] if x.ndim == 3 else rows, axis=1))
        for name, x in inputs.items()
        if name != "keep"
    }


def expect_codes(inputs: Inputs, parameters: Parameters, method: str | None):
    """Codes, scales and zero points, bit by bit."""
    stored = quantize(inputs["x"], parameters["bits"], parameters["group"])
    return {
        "codes": exact(unpack(stored.codes, stored.bits, stored.length)),
        "scale": exact(stored.scale.astype(np.float64)),
        "zero": exact(stored.zero.astype(np.float64)),
    }


def expect_channel_codes(inputs: Inputs, parameters: Parameters, method: str | None):
    """Codes of blocks of tokens, one scale per channel."""
    x, group = inputs["x"], parameters["group"]
    if x.shape[0] % group:
        raise ValueError(f"tokens = {x.shape[0]} must be a multiple of group = {group}")
    stored = quantize(np.ascontiguousarray(x.T), parameters["bits"], group)
    return {
        "codes": exact(unpack(stored.codes, stored.bits, stored.length).T),
        "scale": exact(stored.scale.T.astype(np.float64)),
        "zero": exact(stored.zero.T.astype(np.float64)),
    }


def stored_vectors(inputs: Inputs, parameters: Parameters, prefix: str = "") -> Array:
    """Read codes back: Δ·code + z."""
    found = inputs[f"{prefix}codes"].astype(np.uint8)
    bits, group, length = parameters["bits"], parameters["group"], found.shape[-1]
    scale, zero = inputs[f"{prefix}scale"], inputs[f"{prefix}zero"]
    groups = -(-length // group)
    if scale.shape[-1] != groups:
        raise ValueError(f"{prefix}scale must hold {groups} groups, got {scale.shape[-1]}")
    return Quantized(pack(found, bits), scale, zero, bits, group, length).dequantize()


def expect_read(inputs: Inputs, parameters: Parameters, method: str | None):
    """Return what is read back of codes."""
    vectors = stored_vectors(inputs, parameters)
    return {"x": numbers(vectors, scale=float(np.abs(vectors).max()))}


def expect_faithful(inputs: Inputs, parameters: Parameters, method: str | None):
    """Stored and read back: at most half a step away, whatever scale and zero are stored in."""
    x, bits, group = inputs["x"], parameters["bits"], parameters["group"]
    starts = np.arange(0, x.shape[-1], group)
    low = np.minimum.reduceat(x, starts, axis=-1)
    high = np.maximum.reduceat(x, starts, axis=-1)
    half_step = (high - low) / (2**bits - 1) / 2
    metadata = SHARP * (np.abs(low) + (high - low))
    slack = np.repeat(half_step + 2 * metadata, group, axis=-1)[..., : x.shape[-1]]
    return {"x": numbers(x, scale=float(np.abs(x).max()), slack=slack)}


def expect_packed(inputs: Inputs, parameters: Parameters, method: str | None):
    """Packed codes, without gaps, lowest bit first."""
    return {"packed": exact(pack(inputs["codes"].astype(np.uint8), parameters["bits"]))}


def expect_coded_output(inputs: Inputs, parameters: Parameters, method: str | None):
    """Attention of one token to entries that are stored as codes."""
    keys, values = (stored_vectors(inputs, parameters, f"{name}_") for name in ("key", "value"))
    queries = inputs["queries"]
    mask = np.ones((len(keys), 1, 1, keys.shape[1]), dtype=bool)
    output, _ = attend(queries, keys, values, mask, parameters.get("softcap"))
    return {"output": numbers(output, logit_size(queries, keys), float(np.abs(values).max()))}


def normalised(inputs: Inputs, parameters: Parameters, method: str | None) -> Inputs:
    """Make every row of retention add up to 1 again.

    Raises:
        ValueError: if a row is negative somewhere, or zero.
    """
    h = inputs["h"]
    sums = h.sum(axis=-1, keepdims=True)
    if (h < 0).any() or (sums <= 0).any():
        raise ValueError("h must be positive, and each row must add up to 1")
    return {**inputs, "h": h / sums}


def expect_errors(inputs: Inputs, parameters: Parameters, method: str | None):
    """CAOTE's or FastCAOTE's error per row of retention."""
    measure = fast_eviction_error if parameters["fast"] else eviction_error
    errors = measure(inputs["h"], inputs["values"][:, None], parameters["norm"])
    return {"error": numbers(errors)}


def expect_pooled(inputs: Inputs, parameters: Parameters, method: str | None):
    """Mean or maximum over neighbours."""
    x, kernel = inputs["x"], parameters["kernel"]
    if parameters["pooling"] == "max":
        return {"pooled": numbers(max_pool(x, kernel))}
    return {"pooled": numbers(mean_pool(x, kernel, parameters["border"]))}


def expect_outlier_scores(inputs: Inputs, parameters: Parameters, method: str | None):
    """Mean distance of each vector's outliers to its mean."""
    found: Float[Array, " rows"] = outlier_score(inputs["x"], parameters["over"])
    return {"score": numbers(found, scale=float(np.abs(inputs["x"]).max()))}


ATTENTION_INPUTS = {
    "queries": QUERIES,
    "keys": KEYS,
    "positions": POSITIONS,
    "query_positions": QUERY_POSITIONS,
}
QUANTISER = {"bits": "bits per code: 2, 3, 4 or 8", "group": "elements that share a scale"}
STORED = {
    "codes": codes("rows", "length", meaning="one code per element, not packed"),
    "scale": floats("rows", "groups", meaning="Δ = (max − min)/(2^bits − 1), rounded to float16"),
    "zero": floats("rows", "groups", meaning="z = min, rounded to float16"),
}

OPERATIONS: Mapping[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            "attend",
            "Attention output of a block of queries over the entries of a cache.",
            "softmax(QKᵀ/√d)·V with causal mask by position; CAOTE Eq. 1",
            {**ATTENTION_INPUTS, "values": VALUES},
            {"output": floats("G", "rho", "m", "d", meaning="A·V")},
            SOFTCAP,
            expect_output,
        ),
        Operation(
            "attention",
            "Attention probabilities of a block of queries: what most scores read.",
            "softmax(QKᵀ/√d) with causal mask by position",
            ATTENTION_INPUTS,
            {"attention": floats("G", "rho", "m", "n", meaning="0 where masked")},
            SOFTCAP,
            expect_attention,
        ),
        Operation(
            "received_attention",
            "What every entry got from all rows and query heads: H2O's sums of one block.",
            "AhaKV Eq. 4, summed over the query group",
            ATTENTION_INPUTS,
            {"received": floats("G", "n", meaning="sums over rho and m")},
            SOFTCAP,
            expect_received,
        ),
        Operation(
            "keep_set",
            "Who stays: the safe entries and the best of the rest; of equal scores the later.",
            "the selection of every method; papers state no rule for equal scores",
            {
                "scores": floats("G", "n", meaning="higher stays"),
                "safe": marks("G", "n", meaning="stay whatever the score; as many in every head"),
            },
            {"keep": whole("G", "kept", meaning="indices that stay, ascending")},
            {"room": "how many entries may stay besides the safe ones"},
            expect_keep_set,
        ),
        Operation(
            "compact",
            "Survivors moved together: keys, values, positions and every state by one keep set.",
            "design of every eviction method",
            {
                "keys": KEYS,
                "values": VALUES,
                "positions": POSITIONS,
                "accumulated": floats("G", "n", meaning="a state of the entries"),
                "stamp": whole("G", "n", meaning="another state of the entries"),
                "keep": whole("G", "kept", meaning="indices that stay, ascending"),
            },
            {
                "keys": floats("G", "kept", "d", meaning="of the survivors"),
                "values": floats("G", "kept", "d", meaning="of the survivors"),
                "positions": whole("G", "kept", meaning="of the survivors, unchanged"),
                "accumulated": floats("G", "kept", meaning="of the survivors"),
                "stamp": whole("G", "kept", meaning="of the survivors"),
            },
            {},
            expect_compacted,
        ),
        Operation(
            "quantize",
            "Codes, scale and zero point of groups of consecutive channels of one token.",
            "KIVI §3; halves round to even, a constant group has scale 0 and codes 0",
            {"x": floats("rows", "length", meaning="vectors")},
            STORED,
            QUANTISER,
            expect_codes,
        ),
        Operation(
            "quantize_channels",
            "Codes, scale and zero point of groups of consecutive tokens of one channel.",
            "KIVI §3, keys",
            {"x": floats("t", "d", meaning="keys of one head")},
            {
                "codes": codes("t", "d", meaning="one code per element, not packed"),
                "scale": floats("groups", "d", meaning="Δ, rounded to float16"),
                "zero": floats("groups", "d", meaning="z = min, rounded to float16"),
            },
            QUANTISER,
            expect_channel_codes,
        ),
        Operation(
            "dequantize",
            "Vectors read back of codes: Δ·code + z.",
            "KIVI §3",
            STORED,
            {"x": floats("rows", "length", meaning="what attention reads")},
            QUANTISER,
            expect_read,
        ),
        Operation(
            "quantize_dequantize",
            "Vectors stored and read back, for formats of your own: within half a step of x.",
            "asymmetric round-to-nearest; scale and zero point in 16 bits or more",
            {"x": floats("rows", "length", meaning="vectors")},
            {"x": floats("rows", "length", meaning="what attention reads")},
            QUANTISER,
            expect_faithful,
        ),
        Operation(
            "pack",
            "Codes without gaps in bytes, lowest bit first: kvlab's layout, yours may differ.",
            "no paper",
            {"codes": codes("rows", "length", meaning="one code per element")},
            {"packed": codes("rows", "bytes", meaning="⌈length·bits/8⌉ bytes per vector")},
            {"bits": QUANTISER["bits"]},
            expect_packed,
        ),
        Operation(
            "attend_coded",
            "Attention of one token to keys and values that are stored as codes per token.",
            "KIVI §3, DesireKV §4.4",
            {
                "queries": floats("G", "rho", "m", "d", meaning="of one token, m = 1"),
                **{
                    f"{which}_{name}": type(stored)(
                        ("G", "n", "d" if name == "codes" else "groups"),
                        stored.kind,
                        stored.meaning,
                    )
                    for which in ("key", "value")
                    for name, stored in STORED.items()
                },
            },
            {"output": floats("G", "rho", "m", "d", meaning="over all entries")},
            {**QUANTISER, **SOFTCAP},
            expect_coded_output,
        ),
        Operation(
            "eviction_error",
            "Change of the attention output when one entry alone is evicted.",
            "CAOTE Eq. 8, 9, 21; with fast = true FastCAOTE, Eq. 23",
            {
                "h": floats("G", "k", "n", meaning="normalised retention, each row adds up to 1"),
                "values": VALUES,
            },
            {
                "error": floats(
                    "G", "k", "n", meaning="per row; with all the mass infinite, or above 1e30"
                )
            },
            {"fast": "whether the plain mean of the values stands for the output", "norm": "of v"},
            expect_errors,
            normalised,
        ),
        Operation(
            "pool",
            "Mean or maximum of neighbours, as SnapKV, RPC, R-KV and AhaKV smooth their scores.",
            "SnapKV §4, DesireKV Eq. 4, AhaKV Eq. 13",
            {"x": floats("G", "n", meaning="scores in cache order")},
            {"pooled": floats("G", "n", meaning="the same length")},
            {
                "kernel": "neighbours, odd",
                "pooling": "mean or max",
                "border": "zero: the mean divides by kernel; shrink: by the neighbours there are",
            },
            expect_pooled,
        ),
        Operation(
            "outlier_score",
            "Mean distance of a vector's outliers to its mean, 0 without outliers.",
            "DesireKV Eq. 6; outliers lie beyond 1.5 interquartile ranges, quartiles interpolate",
            {"x": floats("rows", "length", meaning="groups of channels of keys")},
            {"score": floats("rows", meaning="per group")},
            {"over": "outliers: average over them; block: over the whole group"},
            expect_outlier_scores,
        ),
    )
}
"""All building blocks by name."""
