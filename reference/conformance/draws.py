"""Draws cases of the building blocks: from a source of numbers, a variant, and sizes.

The variant says what is special about the numbers; each stresses what a group of published vectors
stresses. Numbers are exact in bfloat16 and float16 unless the variant says otherwise.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kvlab.reference.attention import attend
from kvlab.reference.codes import E2M1, E4M3, Code
from kvlab.reference.conformance import blocks, events, serving
from kvlab.reference.conformance.extremes import ATTENTION, below_the_mask
from kvlab.reference.notation import Array
from kvlab.reference.precisions.fp8 import FORMATS, FP8
from kvlab.reference.precisions.nvfp4 import BLOCK, NVFP4
from kvlab.reference.quantization import quantize, unpack
from kvlab.reference.streams import Source

Drawn = tuple[dict[str, Array], dict[str, Any]]
"""Inputs and parameters."""

Change = Callable[[Array], Array]


class Whole(Source):
    """Draws whole numbers, which are easier to read."""

    def normal(self, *shape: int) -> Array:
        """Draw bell-shaped whole numbers."""
        return np.rint(super().normal(*shape)) + 0.0


# --- attention -----------------------------------------------------------------------------------


def _attention(
    source: Source,
    G: int,
    rho: int,
    m: int,
    n: int,
    d: int,
    gaps: bool = False,
    variant: str = "plain",
    softcap: float = 0,
) -> Drawn:
    draw = source.precise if variant == "float32_inputs" else source.normal
    positions = np.tile(np.arange(n), (G, 1))
    if gaps:
        kept = np.stack([np.sort(source.permutation(4 * n)[: n - m]) for _ in range(G)])
        positions = np.concatenate([kept, np.tile(4 * n + np.arange(m), (G, 1))], axis=1)
    inputs = {
        "queries": 2 * draw(G, rho, m, d),
        "keys": draw(G, n, d),
        "values": draw(G, n, d),
        "positions": positions,
        "query_positions": positions[0, n - m :],
    }
    ATTENTION[variant](inputs)
    return inputs, {"softcap": softcap or (4.0 if variant == "beyond_the_softcap" else None)}


def _without_values(source: Source, **sizes: Any) -> Drawn:
    inputs, parameters = _attention(source, **sizes)
    return {name: x for name, x in inputs.items() if name != "values"}, parameters


# --- selection -----------------------------------------------------------------------------------


def _distinct(source: Source, G: int, n: int) -> Array:
    return np.stack([source.permutation(n) for _ in range(G)]) / 32.0 + 1 / 32


SCORES: Mapping[str, Callable[[Source, int, int], Array]] = {
    "plain": _distinct,
    "ties": lambda s, G, n: s.integers(0, 3, G, n) / 2.0,
    "all_equal": lambda s, G, n: np.full((G, n), 0.375),
    "signed_zero": lambda s, G, n: np.where(s.marks(n // 2, G, n), 0.0, -0.0),
    "negative_scores": lambda s, G, n: _distinct(s, G, n) - n / 64,
    "all_negative": lambda s, G, n: -_distinct(s, G, n),
    "large_scores": lambda s, G, n: 2.0**126 * (1 + _distinct(s, G, n) / n),
    "wide_range": lambda s, G, n: (
        2.0 ** s.integers(-120, 120, G, n) * (1 + _distinct(s, G, n) / 64)
    ),
    "close_scores": lambda s, G, n: 1 + _distinct(s, G, n) * 2.0**-18,
    "tiny_scores": lambda s, G, n: _distinct(s, G, n) * 2.0**-40,
    "subnormal_scores": lambda s, G, n: _distinct(s, G, n) * 2.0**-140,
    "infinite_scores": lambda s, G, n: np.where(s.marks(n // 2, G, n), np.inf, _distinct(s, G, n)),
}
"""Scores, by variant."""


def _selection(
    source: Source, G: int, n: int, safe: int, room: int, variant: str = "plain"
) -> Drawn:
    marked = source.marks(safe, G, n)
    return {"scores": SCORES[variant](source, G, n), "safe": marked}, {"room": room}


def survivors(source: Source, G: int, n: int, kept: int) -> Array:
    """Draw indices that stay, other ones in every head."""
    return np.stack([np.sort(source.permutation(n)[:kept]) for _ in range(G)])


def _moving(source: Source, G: int, n: int, d: int, kept: int, first: int = 0) -> Drawn:
    return {
        "keys": source.normal(G, n, d),
        "values": source.normal(G, n, d),
        "positions": first + np.cumsum(source.integers(1, 5, G, n), axis=1),
        "accumulated": source.uniform(G, n),
        "stamp": first + source.integers(0, 5000, G, n),
        "keep": survivors(source, G, n, kept),
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
    codes = source.integers(0, 2**bits, rows, length).astype(np.uint8)
    return {"codes": codes}, {"bits": bits}


def _coded_cache(
    source: Source, G: int, rho: int, n: int, d: int, bits: int, group: int, softcap: float = 0
) -> Drawn:
    inputs = {
        "queries": 2 * source.normal(G, rho, 1, d),
        **_codes(source.normal(G, n, d), bits, group, "key_"),
        **_codes(source.normal(G, n, d), bits, group, "value_"),
    }
    return inputs, {"bits": bits, "group": group, "softcap": softcap or None}


ENCODED: Mapping[str, Change] = {
    "plain": lambda x: 4 * x,
    "head_scales": lambda x: x * 8.0 ** (np.arange(len(x)) % 4)[:, None, None],
    "later_vectors": lambda x: x * np.where(np.arange(x.shape[1]) < 4, 1.0, 4.0)[:, None],
    "block_scales": lambda x: x * 2.0 ** (np.arange(x.shape[2]) // 16),
    "rotated_codes": lambda x: x * 2.0 ** (np.arange(x.shape[1]) - 3)[:, None],
    "zero_vectors": lambda x: np.where(np.arange(x.shape[1])[:, None] % 3 == 1, 0.0, x),
}
"""What is changed about vectors that are stored in the code of a precision, by variant."""

NUDGE = 5e-6
"""Relative noise under which no code may change: as much as float32 loses."""

NUDGES = 8

FIRST = 4
"""Vectors of the first block, which fixes the scale."""

REDRAWN = 50
"""How often elements near a border are drawn anew at most."""


def _to_encode(
    source: Source, precision: str, G: int, n: int, d: int, variant: str = "plain"
) -> Drawn | None:
    """Return None if the code has no such variant, or an element lies near the border of two codes.

    Of halves all lie on a border, exactly.
    """
    code = blocks.code_of(precision)
    if variant == "halves":
        x = _halfway(source, code, (G, n, d))
        return None if x is None else ({"x": x, "first": x[:, :FIRST]}, {"precision": precision})
    x = ENCODED[variant](source.normal(G, n, d))
    for _ in range(REDRAWN):
        doubtful = _doubtful(code, x)
        if not doubtful.any():
            break
        x = np.where(doubtful, ENCODED[variant](source.normal(G, n, d)), x)
    else:
        return None
    inputs = {"x": x, "first": x[:, :FIRST], **blocks.matrices(precision, d)}
    inputs.pop("value_centroids", None)
    return inputs, {"precision": precision}


def _doubtful(code: Code, x: Array) -> Array:
    """Mark the elements near the border of two codes, or whose block scale is."""
    expected, marks = _all_codes(code, x), np.zeros(x.shape, dtype=bool)
    for number in range(NUDGES):
        noise = 1 + NUDGE * Source("nudge of a code", number).normal(*x.shape)
        for found, right in zip(_all_codes(code, x * noise), expected, strict=True):
            each = -(-x.shape[-1] // found.shape[-1])
            marks |= np.repeat(found != right, each, axis=-1)[..., : x.shape[-1]]
    return marks


def _all_codes(code: Code, x: Array) -> list[Array]:
    codes, parts, _ = blocks.encoded(code, x, x[:, :FIRST])
    scales = (part for part in parts[1:] if part.dtype == np.uint8)
    return [codes, *(part.reshape(*x.shape[:2], -1) for part in scales)]


def _halfway(source: Source, code: Code, shape: tuple[int, int, int]) -> Array | None:
    """Draw middles between neighbouring numbers of a float code whose scales are powers of two."""
    if isinstance(code, FP8):
        numbers, scale = FORMATS[code.format], 1.0
    elif isinstance(code, NVFP4):
        numbers, scale = E2M1, 256.0
    else:
        return None
    below = np.arange(64 if scale == 1 else 7)
    middles = (numbers.decode(below) + numbers.decode(below + 1)) / 2
    x = scale * middles[source.integers(0, len(below), *shape)]
    x[..., ::BLOCK] = scale * numbers.largest
    if isinstance(code, NVFP4):
        x[0, 0, :BLOCK] = 0
        x[0, 0, 0] = E4M3.largest * E2M1.largest
    return x * (-1.0) ** source.integers(0, 2, *shape)


# --- pages ---------------------------------------------------------------------------------------

SPARE = 3
"""Pages of the memory that do not belong to the sequence."""


LEFT: Mapping[str, Callable[[int], int]] = {
    "none": lambda page: 0,
    "one": lambda page: min(1, page - 1),
    "two": lambda page: 2,
    "most": lambda page: page - 1,
}
"""Places of the last page that were never written."""


def _memory(
    source: Source, places: int, page: int, left: int, G: int, d: int, poisoned: bool
) -> dict[str, Array]:
    """Draw pages of a sequence whose last ``left`` places were never written, and of others.

    Poisoned memory holds NaN where nothing may be read: 0 · NaN is no 0.
    """
    inputs = {
        "key_pages": source.normal(places + SPARE, page, G, d),
        "value_pages": 8 * source.normal(places + SPARE, page, G, d),
        "table": source.permutation(places + SPARE)[:places],
    }
    for name in ("key_pages", "value_pages") if poisoned else ():
        inputs[name][inputs["table"][-1], page - left :] = np.nan
    return inputs


def _paged(
    source: Source,
    page: int,
    freed: int,
    m: int,
    rho: int,
    places: int = 0,
    full: int = 0,
    left: str = "two",
    d: int = 8,
    poisoned: bool = False,
    gone: int = 0,
    G: int = 2,
    hole: bool = False,
    behind: int = 0,
    softcap: float = 0,
    loud: bool = False,
    variant: str = "plain",
) -> Drawn:
    """Draw a sequence whose first pages were freed, after so many others that are gone for long.

    ``full`` pages lie before those that the queries' own entries need. A ``hole`` is a freed page
    between live ones, and ``behind`` are numbers of others' pages after the end of the table.
    """
    free = LEFT[left](page)
    places = places or freed + 2 * hole + full - (-(m + free) // page)
    last = places * page - free
    inputs = _memory(source, places, page, free, G, d, poisoned)
    dead = np.isin(np.arange(places), [*range(freed), *([freed + 1] if hole else [])])
    there = np.isin(np.arange(places + SPARE), inputs["table"][~dead])
    for name in ("key_pages", "value_pages") if poisoned else ():
        inputs[name][~there] = np.nan
    others = np.flatnonzero(~there)[:behind]
    inputs["table"][dead] = -1
    inputs["table"] = np.concatenate([np.full(gone, -1), inputs["table"], others])
    inputs["queries"] = (64 if loud else 2) * source.normal(G, rho, m, d)
    if variant == "below_the_mask":
        below_the_mask(inputs, "key_pages")
    inputs["query_positions"] = np.arange(last - m, last) + gone * page
    return inputs, {"softcap": softcap or None}


def _moves(
    source: Source,
    places: int,
    page: int,
    kept: int,
    d: int = 8,
    poisoned: bool = False,
    left: str = "one",
    G: int = 2,
) -> Drawn:
    free = LEFT[left](page)
    memory = _memory(source, places, page, free, G, d, poisoned)
    return {**memory, "keep": survivors(source, G, places * page - free, kept)}, {}


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
    h = RETENTION[variant](attend(queries, keys, keys, None)[1][:, :, 0])
    return {"h": h, "values": source.normal(G, n, d)}, {"fast": fast, "norm": norm}


def _to_pool(source: Source, G: int, n: int, negative: bool = False, **parameters: Any) -> Drawn:
    return {"x": source.uniform(G, n) - negative}, parameters


BLOCKS: Mapping[str, Callable[..., Drawn | None]] = {
    "attend": _attention,
    "attention": _without_values,
    "received_attention": _without_values,
    "keep_set": _selection,
    "compact": _moving,
    "quantize": _vectors,
    "quantize_channels": lambda source, parts, d, group, **rest: _vectors(
        source, parts * group, d, group=group, **rest
    ),
    "dequantize": _stored,
    "quantize_dequantize": _vectors,
    "pack": _to_pack,
    "attend_coded": _coded_cache,
    "attend_pages": _paged,
    "compact_pages": _moves,
    "encode": _to_encode,
    "attend_requests": serving.requests_drawn,
    "merge_states": serving.states_drawn,
    "write_pages": serving.writes_drawn,
    "rotate": serving.rotations_drawn,
    "events": events.drawn,
    "eviction_error": _retention,
    "pool": _to_pool,
    "outlier_score": _vectors,
}
"""How the inputs of each building block are drawn; None: the numbers leave doubt, draw others."""
