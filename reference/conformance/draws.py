"""Draws inputs of the building blocks: from a source of numbers, a variant, and sizes.

The variant says what is special about the numbers; each stresses what a group of published vectors
stresses. Numbers are exact in bfloat16 and float16 unless the variant says otherwise.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvlab.reference.attention import attend, visible
from kvlab.reference.conformance import blocks
from kvlab.reference.notation import Array
from kvlab.reference.quantization import quantize, unpack
from kvlab.reference.streams import Source

Drawn = tuple[dict[str, Array], dict[str, Any]]
"""Inputs and parameters."""

Change = Callable[[Array], Array]


# --- attention -----------------------------------------------------------------------------------


def _logits(queries: float, keys: float) -> Callable[[dict[str, Array]], None]:
    def change(x: dict[str, Array]) -> None:
        x["queries"][..., 0], x["keys"][..., 0] = queries, keys

    return change


def _rows_apart(x: dict[str, Array]) -> None:
    """Each row has to subtract its own largest logit, and that of a visible entry."""
    rho, m = x["queries"].shape[1:3]
    x["queries"][..., 0] = 64.0 * (-1.0) ** np.add.outer(np.arange(rho), np.arange(m))
    x["keys"][..., 0], x["keys"][:, -1, 0] = 64.0, 128.0


def _far_positions(x: dict[str, Array]) -> None:
    """Positions beyond 2^16 and, of older entries, around 2^15: more than 16 bits hold."""
    m = len(x["query_positions"])
    x["positions"] += 2**15 - 40
    x["positions"][:, -m:] = x["query_positions"] = 70001 + np.arange(m)


def _one_heavy(x: dict[str, Array]) -> None:
    _logits(4.0, 0.0)(x)
    x["keys"][:, x["keys"].shape[1] // 3, 0] = 12.0


ATTENTION: Mapping[str, Callable[[dict[str, Array]], None]] = {
    "plain": lambda x: None,
    "softcap": lambda x: None,
    "float32_inputs": lambda x: None,
    "ties": lambda x: x["keys"].fill(0),
    "extreme_logits": _logits(64.0, 32.0),
    "low_logits": _logits(64.0, -64.0),
    "rows_apart": _rows_apart,
    "far_positions": _far_positions,
    "alpha_near_one": _one_heavy,
}
"""What is changed about queries, keys and positions, by variant."""


def _attention(
    source: Source,
    G: int,
    rho: int,
    m: int,
    n: int,
    d: int,
    scale: float = 2.0,
    gaps: bool = False,
    variant: str = "plain",
) -> Drawn:
    draw = source.precise if variant == "float32_inputs" else source.normal
    positions = np.tile(np.arange(n), (G, 1))
    if gaps:
        kept = np.stack([np.sort(source.permutation(4 * n)[: n - m]) for _ in range(G)])
        positions = np.concatenate([kept, np.tile(4 * n + np.arange(m), (G, 1))], axis=1)
    inputs = {
        "queries": scale * draw(G, rho, m, d),
        "keys": draw(G, n, d),
        "values": draw(G, n, d),
        "positions": positions,
        "query_positions": positions[0, n - m :],
    }
    ATTENTION[variant](inputs)
    return inputs, {"softcap": 4.0 if variant == "softcap" else None}


def _without_values(source: Source, **sizes: Any) -> Drawn:
    inputs, parameters = _attention(source, **sizes)
    return {name: x for name, x in inputs.items() if name != "values"}, parameters


# --- selection -----------------------------------------------------------------------------------


def _distinct(source: Source, G: int, n: int) -> Array:
    return np.stack([source.permutation(n) for _ in range(G)]) / 32.0 + 1 / 32


def _wide_range(source: Source, G: int, n: int) -> Array:
    return 2.0 ** source.integers(-120, 120, G, n) * (1 + _distinct(source, G, n) / 64)


SCORES: Mapping[str, Callable[[Source, int, int], Array]] = {
    "plain": _distinct,
    "ties": lambda s, G, n: s.integers(0, 3, G, n) / 2.0,
    "all_equal": lambda s, G, n: np.full((G, n), 0.375),
    "signed_zero": lambda s, G, n: np.where(s.marks(n // 2, G, n), 0.0, -0.0),
    "negative_scores": lambda s, G, n: _distinct(s, G, n) - n / 64,
    "all_negative": lambda s, G, n: -_distinct(s, G, n),
    "large_scores": lambda s, G, n: 2.0**126 * (1 + _distinct(s, G, n) / n),
    "wide_range": _wide_range,
    "close_scores": lambda s, G, n: 1 + _distinct(s, G, n) * 2.0**-18,
    "infinite_scores": lambda s, G, n: np.where(s.marks(n // 2, G, n), np.inf, _distinct(s, G, n)),
}
"""Scores, by variant."""


def _selection(
    source: Source, G: int, n: int, safe: int, room: int, variant: str = "plain"
) -> Drawn:
    marked = source.marks(safe, G, n)
    return {"scores": SCORES[variant](source, G, n), "safe": marked}, {"room": room}


def _moving(source: Source, G: int, n: int, d: int, kept: int, first: int = 0) -> Drawn:
    keep = np.stack([np.sort(source.permutation(n)[:kept]) for _ in range(G)])
    gaps = np.cumsum(source.integers(1, 5, G, n), axis=1)
    return {
        "keys": source.normal(G, n, d),
        "values": source.normal(G, n, d),
        "positions": first + gaps,
        "accumulated": source.uniform(G, n),
        "stamp": first + source.integers(0, 5000, G, n),
        "keep": keep,
    }, {}


# --- codes ---------------------------------------------------------------------------------------


def _with_outliers(x: Array) -> Array:
    spiked = x.copy()
    spiked[..., min(5, x.shape[-1] - 1)] *= 64
    return spiked


def _halves(x: Array) -> Array:
    count = x.shape[-1]
    return np.broadcast_to(np.minimum(np.arange(count), count - 2) * 0.5, x.shape)


CHANGES: Mapping[str, Change] = {
    "plain": lambda x: x,
    "constant_group": lambda x: np.full_like(x, 1.25),
    "some_constant": lambda x: np.where(np.arange(len(x))[:, None] % 2 == 0, -0.75, x),
    "outliers": _with_outliers,
    "halves": _halves,
    "rising": lambda x: np.broadcast_to(np.arange(x.shape[-1]) / 8.0, x.shape),
    "large_values": lambda x: x * 8192,
    "far_from_zero": lambda x: x / 32 + 100,
}
"""What is changed about vectors, by variant."""


def _vectors(
    source: Source, rows: int, length: int, variant: str = "plain", **parameters: int | str
) -> Drawn:
    return {"x": CHANGES[variant](source.normal(rows, length))}, parameters


def _channels(source: Source, parts: int, d: int, group: int, **rest: Any) -> Drawn:
    return _vectors(source, parts * group, d, group=group, **rest)


def _codes(x: Array, bits: int, group: int, prefix: str = "") -> dict[str, Array]:
    found = quantize(x, bits, group)
    return {
        f"{prefix}codes": unpack(found.codes, bits, found.length),
        f"{prefix}scale": found.scale.astype(np.float64),
        f"{prefix}zero": found.zero.astype(np.float64),
    }


def _stored(source: Source, rows: int, length: int, bits: int, group: int) -> Drawn:
    return _codes(source.normal(rows, length), bits, group), {"bits": bits, "group": group}


def _to_pack(source: Source, rows: int, length: int, bits: int) -> Drawn:
    return {"codes": source.integers(0, 2**bits, rows, length)}, {"bits": bits}


def _coded_cache(
    source: Source,
    G: int,
    rho: int,
    n: int,
    d: int,
    bits: int,
    group: int,
    capped: bool = False,
) -> Drawn:
    inputs = {
        "queries": 2 * source.normal(G, rho, 1, d),
        **_codes(source.normal(G, n, d), bits, group, "key_"),
        **_codes(source.normal(G, n, d), bits, group, "value_"),
    }
    return inputs, {"bits": bits, "group": group, "softcap": 4.0 if capped else None}


ENCODED: Mapping[str, Change] = {
    "plain": lambda x: 4 * x,
    "head_scales": lambda x: x * 8.0 ** np.arange(len(x))[:, None, None],
    "later_vectors": lambda x: x * np.where(np.arange(x.shape[1]) < 4, 1.0, 4.0)[:, None],
    "block_scales": lambda x: x * 2.0 ** (np.arange(x.shape[2]) // 16),
    "rotated_codes": lambda x: x * 2.0 ** (np.arange(x.shape[1]) - 3)[:, None],
    "zero_vectors": lambda x: np.where(np.arange(x.shape[1])[:, None] % 3 == 1, 0.0, x),
}
"""What is changed about vectors that are stored in the code of a precision, by variant."""

NUDGE = 5e-6
"""Relative noise under which no code may change: as much as float32 loses."""

NUDGES = 8


def _to_encode(
    source: Source, precision: str, G: int, n: int, d: int, variant: str = "plain"
) -> Drawn | None:
    """Return None if an element lies near the border of two codes."""
    x, parameters = ENCODED[variant](source.normal(G, n, d)), {"precision": precision}
    code, first = blocks.code_of(parameters), x[:, :4]
    codes, parts, _ = blocks.encoded(code, x, first)
    for number in range(NUDGES):
        noise = 1 + NUDGE * Source("nudge of a code", number).normal(*x.shape)
        moved, others, _ = blocks.encoded(code, x * noise, first)
        whole = [(a, b) for a, b in zip(parts, others, strict=True) if a.dtype == np.uint8]
        if not all(np.array_equal(a, b) for a, b in ((codes, moved), *whole)):
            return None
    return dict(blocks.with_matrices({"x": x, "first": first}, parameters, None)), parameters


# --- pages ---------------------------------------------------------------------------------------

SPARE = 3
"""Pages of the memory that do not belong to the sequence."""


def _paged(source: Source, places: int, page: int, freed: int, m: int, rho: int) -> Drawn:
    G, d, last = 2, 8, places * page - 2
    table = source.permutation(places + SPARE)[:places]
    table[:freed] = -1
    return {
        "queries": 2 * source.normal(G, rho, m, d),
        "key_pages": source.normal(places + SPARE, page, G, d),
        "value_pages": 8 * source.normal(places + SPARE, page, G, d),
        "table": table,
        "query_positions": np.arange(last - m, last),
    }, {"softcap": None}


def _moves(source: Source, places: int, page: int, kept: int) -> Drawn:
    G, d, written = 2, 8, places * page - 1
    return {
        "key_pages": source.normal(places + SPARE, page, G, d),
        "value_pages": source.normal(places + SPARE, page, G, d),
        "table": source.permutation(places + SPARE)[:places],
        "keep": np.stack([np.sort(source.permutation(written)[:kept]) for _ in range(G)]),
    }, {}


# --- CAOTE, pooling ------------------------------------------------------------------------------


def _one_of_two(h: Array, mass: float) -> Array:
    """Give one entry so much of the attention, and the others the rest."""
    found = h / h.sum(axis=-1, keepdims=True) * (1 - mass)
    found[..., h.shape[-1] // 4] = mass
    return found


def _half_mass(h: Array) -> Array:
    found = np.zeros_like(h)
    found[..., 0] = found[..., -1] = 0.5
    return found


RETENTION: Mapping[str, Change] = {
    "plain": lambda h: h,
    "uniform": lambda h: np.full_like(h, 1 / h.shape[-1]),
    "half_mass": _half_mass,
    "alpha_near_one": lambda h: _one_of_two(h, 1 - 2.0**-23),
    "all_mass": lambda h: _one_of_two(h, 1.0),
}
"""What is changed about attention, by variant."""


def _retention(
    source: Source,
    G: int,
    k: int,
    n: int,
    d: int,
    fast: bool = False,
    norm: float = 2,
    variant: str = "plain",
) -> Drawn:
    queries, keys = 2 * source.normal(G, k, 1, 8), source.normal(G, n, 8)
    mask = visible(np.array([n - 1]), np.tile(np.arange(n), (G, 1)))
    h = RETENTION[variant](attend(queries, keys, keys, mask)[1][:, :, 0])
    return {"h": h, "values": source.normal(G, n, d)}, {"fast": fast, "norm": norm}


def _pooling(source: Source, G: int, n: int, kernel: int, pooling: str, border: str) -> Drawn:
    parameters = {"kernel": kernel, "pooling": pooling, "border": border}
    return {"x": source.uniform(G, n)}, parameters


# --- sizes ---------------------------------------------------------------------------------------

BLOCKS: Mapping[str, Callable[..., Drawn | None]] = {
    "attend": _attention,
    "attention": _without_values,
    "received_attention": _without_values,
    "keep_set": _selection,
    "compact": _moving,
    "quantize": _vectors,
    "quantize_channels": _channels,
    "dequantize": _stored,
    "quantize_dequantize": _vectors,
    "pack": _to_pack,
    "attend_coded": _coded_cache,
    "attend_pages": _paged,
    "compact_pages": _moves,
    "encode": _to_encode,
    "eviction_error": _retention,
    "pool": _pooling,
    "outlier_score": _vectors,
}
"""How the inputs of each building block are drawn; None: the numbers leave doubt, draw others."""

SIZES: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("sizes.toml").read_text(encoding="utf-8")
)
"""Sizes of kernels and of long caches, and what may be chosen about small cases."""

SMALL: Mapping[str, Mapping[str, Sequence[Any]]] = {
    operation: {name: values for name, values in choices.items() if name != "operations"}
    for choices in SIZES["small"]
    for operation in choices["operations"]
}
"""By building block, the values of each size among which one is chosen, the simplest first."""


def sized(size: str) -> Iterator[tuple[str, str, int, Mapping[str, Any]]]:
    """Yield operation, group, number in the group, and sizes of the building blocks."""
    for group, shapes in SIZES[size]["attention"].items():
        for number, shape in enumerate(shapes):
            axes = dict(zip(("G", "rho", "m", "n", "d"), shape, strict=True))
            gaps = {**axes, "gaps": number % 2 == 1}
            yield "attend", group, number, gaps
            yield "attention", group, number, gaps
            yield "received_attention", group, number, {**axes, "scale": 1 / 16}
    for number, n in enumerate(SIZES[size]["lengths"]):
        yield "keep_set", "lengths", number, {"G": 2, "n": n, "safe": 5, "room": n // 2}
        few = {"G": 1, "n": n, "safe": 3, "room": n - 7, "variant": "ties"}
        yield "keep_set", "lengths_ties", number, few
        d = 64 if n < 5000 else 8
        yield "compact", "lengths", number, {"G": 1, "n": n, "d": d, "kept": n - n // 3}
        how = {"pooling": ("mean", "max")[number % 2], "border": "zero"}
        yield "pool", "lengths", number, {"G": 2, "n": n, "kernel": 7, **how}
        yield "eviction_error", "lengths", number, {"G": 1, "k": 2, "n": n, "d": 64}
    for number, (group, length) in enumerate(SIZES[size]["wide"]):
        for bits in (2, 4, 8):
            wide, codes = f"wide_{bits}_bits", {"bits": bits, "group": group}
            rows = {"rows": 9, "length": length}
            yield "quantize", wide, number, {**rows, **codes}
            yield "quantize_dequantize", wide, number, {**rows, **codes}
            yield "quantize_channels", wide, number, {"parts": 2, "d": 65, **codes}
            yield "dequantize", wide, number, {**rows, **codes}
            yield "pack", wide, number, {"rows": 9, "length": length + 1, "bits": bits}
            d = length if length < 300 else 64
            cache = {"G": 1, "rho": 8, "n": length + 1, "d": d, **codes}
            yield "attend_coded", wide, number, cache
        spiked = {"rows": 9, "length": length, "over": "outliers", "variant": "outliers"}
        yield "outlier_score", "wide", number, spiked
