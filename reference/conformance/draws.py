"""Draws cases of the building blocks: from a source of numbers, and the sizes and words of a row.

A row's variant says what is special about the numbers; each stresses what a group of published
vectors stresses. Numbers are exact in bfloat16 and float16 unless the variant says otherwise.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvlab.reference.attention import attend
from kvlab.reference.codes import E2M1, E4M3, Code
from kvlab.reference.conformance import blocks, events, plan, serving
from kvlab.reference.conformance.operation import DESCRIBED
from kvlab.reference.notation import Array
from kvlab.reference.precisions.fp8 import FORMATS, FP8
from kvlab.reference.precisions.nvfp4 import BLOCK, NVFP4
from kvlab.reference.quantization import quantize, unpack
from kvlab.reference.streams import Source

Arrays = dict[str, Array]

Drawn = tuple[Arrays, dict[str, Any]]
"""Inputs and parameters."""

Change = Callable[[Array], Array]

OPTIONAL = ("softcap", "scale", "window")
"""Parameters that are None where a row has 0."""


class Whole(Source):
    """Draws whole numbers, which are easier to read."""

    def normal(self, *shape: int) -> Array:
        """Draw bell-shaped whole numbers."""
        return np.rint(super().normal(*shape)) + 0.0


def drawn(operation: str, source: Source, row: Mapping[str, Any]) -> Drawn | None:
    """Draw inputs of a building block; None: the numbers leave doubt, draw others.

    ``row`` holds sizes, words and the operation's parameters; what it lacks is as usual.
    """
    sizes = SimpleNamespace(**{**plan.TABLES["usual"], **row})
    inputs = BLOCKS[operation](source, sizes)
    if inputs is None:
        return None
    if sizes.below:
        serving.move_up(inputs, sizes.below)
    names = DESCRIBED["operations"][operation].get("parameters", ())
    told = {name: getattr(sizes, name) for name in names}
    return inputs, {name: None if name in OPTIONAL and not x else x for name, x in told.items()}


# --- attention -----------------------------------------------------------------------------------


def _attention(source: Source, x: Any) -> Arrays:
    draw = source.precise if x.variant == "float32_inputs" else source.normal
    positions = np.tile(np.arange(x.n), (x.G, 1))
    if x.gaps:
        kept = survivors(source, x.G, 4 * x.n, x.n - x.m)
        newest = np.tile(4 * x.n + np.arange(x.m), (x.G, 1))
        positions = np.concatenate([kept, newest], axis=1)
    inputs = {
        "queries": 2 * draw(x.G, x.rho, x.m, x.d),
        "keys": draw(x.G, x.n, x.d),
        "values": draw(x.G, x.n, x.d),
        "positions": positions,
        "query_positions": positions[0, x.n - x.m :],
    }
    ATTENTION[x.variant](inputs)
    x.softcap = x.softcap or 4.0 * (x.variant == "beyond_the_softcap")
    return inputs


def _without_values(source: Source, x: Any) -> Arrays:
    return {name: each for name, each in _attention(source, x).items() if name != "values"}


def _logits(queries: float, keys: float) -> Callable[[Arrays], None]:
    def change(x: Arrays) -> None:
        x["queries"][..., 0], x["keys"][..., 0] = queries, keys

    return change


def _beyond_the_softcap(x: Arrays) -> None:
    """Logits of 700 and −700: e^(logit/4) overflows in float32."""
    d = x["keys"].shape[-1]
    _logits(0.0, 0.0)(x)
    x["queries"] /= 16
    x["queries"][..., 0] = np.ceil(np.sqrt(d)) * 32
    x["keys"][..., 0] = 22.0 * (-1.0) ** np.arange(x["keys"].shape[1])


def _rows_apart(x: Arrays) -> None:
    """Each row has to subtract its own largest logit, and that of a visible entry."""
    rho, m = x["queries"].shape[1:3]
    x["queries"][..., 0] = 64.0 * (-1.0) ** np.add.outer(np.arange(rho), np.arange(m))
    x["keys"][..., 0], x["keys"][:, -1, 0] = 64.0, 128.0


def _far_positions(x: Arrays) -> None:
    """Positions beyond 2^16 and, of older entries, around 2^15: more than 16 bits hold."""
    m = len(x["query_positions"])
    x["positions"] += 2**15 - 40
    x["positions"][:, -m:] = x["query_positions"] = 70001 + np.arange(m)


def _few_heavy(x: Arrays) -> None:
    """Eight entries share the attention; of each the next one gets nine tenths, in turns."""
    x["queries"] /= 16
    _logits(4.0, 0.0)(x)
    order = 5 * np.arange(8) % 8
    x["keys"][:, :8, 0] = np.sqrt(x["keys"].shape[-1]) / 4 * (16 - order / 8)


def _one_heavy(x: Arrays) -> None:
    _logits(4.0, 0.0)(x)
    x["keys"][:, x["keys"].shape[1] // 3, 0] = 12.0


def _flat(x: Arrays) -> None:
    x["queries"] /= 16
    x["values"] += 2


def _twice(x: Arrays) -> None:
    for name in ("keys", "values"):
        again = x[name][:, 1::2]
        again[:] = x[name][:, ::2][:, : again.shape[1]]


def _heads_apart(x: Arrays) -> None:
    """Even heads rate the newest entries highest, odd ones the oldest."""
    G, n, d = x["keys"].shape
    rising = np.linspace(-1, 1, n) * (-1.0) ** np.arange(G)[:, None]
    _logits(2.0, 0.0)(x)
    x["keys"][..., 0] = np.rint(16 * np.sqrt(d) * rising) / 8
    x["values"] *= 2.0 ** np.rint(3 * rising)[..., None]


def _returning(x: Arrays) -> None:
    """The third entry is attended to while it is new, and again near the end."""
    _logits(0.0, 0.0)(x)
    x["queries"] /= 16
    x["keys"][:, 2, 0] = 8 * np.sqrt(x["keys"].shape[2])
    x["queries"][:, :, [3, 4, -20, -1], 0] = 1.0


ATTENTION: Mapping[str, Callable[[Arrays], None]] = {
    **serving.MASKS,
    "plain": lambda x: None,
    "beyond_the_softcap": _beyond_the_softcap,
    "float32_inputs": lambda x: None,
    "ties": lambda x: x["keys"].fill(0),
    "extreme_logits": _logits(64.0, 32.0),
    "low_logits": _logits(64.0, -64.0),
    "few_heavy": _few_heavy,
    "rows_apart": _rows_apart,
    "far_positions": _far_positions,
    "alpha_near_one": _one_heavy,
    "flat": _flat,
    "heads_apart": _heads_apart,
    "returning": _returning,
    "repeated_entries": _twice,
}
"""What is changed about queries, keys, values and positions, by variant."""


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
    "crowded_scores": lambda s, G, n: 2.0**14 + (_distinct(s, G, n) - 1 / 32) * 2.0**-4,
    "tiny_scores": lambda s, G, n: _distinct(s, G, n) * 2.0**-40,
    "subnormal_scores": lambda s, G, n: _distinct(s, G, n) * 2.0**-140,
    "infinite_scores": lambda s, G, n: np.where(s.marks(n // 2, G, n), np.inf, _distinct(s, G, n)),
}
"""Scores, by variant."""


def _selection(source: Source, x: Any) -> Arrays:
    marked = source.marks(x.safe, x.G, x.n)
    return {"scores": SCORES[x.variant](source, x.G, x.n), "safe": marked}


def survivors(source: Source, G: int, n: int, kept: int) -> Array:
    """Draw indices that stay, other ones in every head."""
    return np.stack([np.sort(source.permutation(n)[:kept]) for _ in range(G)])


def _moving(source: Source, x: Any) -> Arrays:
    return {
        "keys": source.normal(x.G, x.n, x.d),
        "values": source.normal(x.G, x.n, x.d),
        "positions": x.first + np.cumsum(source.integers(1, 5, x.G, x.n), axis=1),
        "accumulated": source.uniform(x.G, x.n),
        "stamp": x.first + source.integers(0, 5000, x.G, x.n),
        "keep": survivors(source, x.G, x.n, x.kept),
    }


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


def _vectors(source: Source, x: Any) -> Arrays:
    return {"x": CHANGES[x.variant](source.normal(x.rows, x.length))}


def _channels(source: Source, x: Any) -> Arrays:
    return {"x": CHANGES[x.variant](source.normal(x.parts * x.group, x.d))}


def _codes(source: Source, shape: tuple[int, ...], x: Any, prefix: str = "") -> Arrays:
    found = quantize(source.normal(*shape), x.bits, x.group)
    return {
        f"{prefix}codes": unpack(found.codes, x.bits, found.length),
        f"{prefix}scale": found.scale.astype(np.float64),
        f"{prefix}zero": found.zero.astype(np.float64),
    }


def _to_pack(source: Source, x: Any) -> Arrays:
    return {"codes": source.integers(0, 2**x.bits, x.rows, x.length).astype(np.uint8)}


def _coded_cache(source: Source, x: Any) -> Arrays:
    queries, shape = 2 * source.normal(x.G, x.rho, 1, x.d), (x.G, x.n, x.d)
    keys, values = (_codes(source, shape, x, f"{name}_") for name in ("key", "value"))
    return {"queries": queries, **keys, **values}


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


def _to_encode(source: Source, x: Any) -> Arrays | None:
    """Return None if the code has no such variant, or an element lies near the border of two codes.

    Of halves all lie on a border, exactly.
    """
    code, shape = blocks.code_of(x.precision), (x.G, x.n, x.d)
    if x.variant == "halves":
        halves = _halfway(source, code, shape)
        return None if halves is None else {"x": halves, "first": halves[:, :FIRST]}
    vectors = ENCODED[x.variant](source.normal(*shape))
    for _ in range(REDRAWN):
        doubtful = _doubtful(code, vectors)
        if not doubtful.any():
            break
        vectors = np.where(doubtful, ENCODED[x.variant](source.normal(*shape)), vectors)
    else:
        return None
    inputs = {"x": vectors, "first": vectors[:, :FIRST], **blocks.matrices(x.precision, x.d)}
    inputs.pop("value_centroids", None)
    return inputs


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


def _left(x: Any) -> int:
    """Return how many places of the last page were never written."""
    return {"none": 0, "one": min(1, x.page - 1), "two": 2, "most": x.page - 1}[x.left]


def _memory(source: Source, places: int, left: int, x: Any) -> Arrays:
    """Draw pages of a sequence whose last ``left`` places were never written, and of others.

    Poisoned memory holds NaN where nothing may be read: 0 · NaN is no 0.
    """
    shape = places + SPARE, x.page, x.G, x.d
    inputs = {"key_pages": source.normal(*shape), "value_pages": 8 * source.normal(*shape)}
    inputs["table"] = source.permutation(places + SPARE)[:places]
    for name in ("key_pages", "value_pages") if x.poisoned else ():
        inputs[name][inputs["table"][-1], x.page - left :] = np.nan
    return inputs


def _paged(source: Source, x: Any) -> Arrays:
    """Draw a sequence whose first pages were freed, after so many others that are gone for long.

    ``full`` pages lie before those that the queries' own entries need. A ``hole`` is a freed page
    between live ones, and ``behind`` are numbers of others' pages after the end of the table.
    """
    free = _left(x)
    places = x.places or x.freed + 2 * x.hole + x.full - (-(x.m + free) // x.page)
    last = places * x.page - free
    inputs = _memory(source, places, free, x)
    table, page = inputs["table"], np.arange(places)
    dead = (page < x.freed) | (x.hole & (page == x.freed + 1))
    there = np.isin(np.arange(places + SPARE), table[~dead])
    for name in ("key_pages", "value_pages") if x.poisoned else ():
        inputs[name][~there] = np.nan
    table[dead], others = -1, np.flatnonzero(~there)[: x.behind]
    inputs["table"] = np.concatenate([np.full(x.gone, -1), table, others])
    inputs["queries"] = (64 if x.loud else 2) * source.normal(x.G, x.rho, x.m, x.d)
    if x.variant in serving.MASKS:
        serving.MASKS[x.variant](inputs, "key_pages", (table[-1], x.page - free - 1))
    inputs["query_positions"] = np.arange(last - x.m, last) + x.gone * x.page
    return inputs


def _moves(source: Source, x: Any) -> Arrays:
    free = _left(x)
    memory = _memory(source, x.places, free, x)
    return {**memory, "keep": survivors(source, x.G, x.places * x.page - free, x.kept)}


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
    "common_offset": lambda h: h,
    "faint": lambda h: np.zeros_like(h) + 0.5 ** np.minimum(1 + np.arange(n := h.shape[-1]), n - 1),
}
"""What is changed about attention, by variant."""


OFFSET = 4096.0
"""What all values have in common: whoever expands the square of a distance loses all digits."""


def _retention(source: Source, x: Any) -> Arrays:
    queries, keys = 2 * source.normal(x.G, x.k, 1, 8), source.normal(x.G, x.n, 8)
    h = RETENTION[x.variant](attend(queries, keys, keys, None)[1][:, :, 0])
    values = source.normal(x.G, x.n, x.d)
    return {"h": h, "values": values + OFFSET * (x.variant == "common_offset")}


BLOCKS: Mapping[str, Callable[[Source, Any], Arrays | None]] = {
    **dict.fromkeys(("quantize", "quantize_dequantize", "outlier_score"), _vectors),
    **dict.fromkeys(("attention", "received_attention"), _without_values),
    "attend": _attention,
    "keep_set": _selection,
    "compact": _moving,
    "quantize_channels": _channels,
    "dequantize": lambda source, x: _codes(source, (x.rows, x.length), x),
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
    "pool": lambda source, x: {"x": source.uniform(x.G, x.n) - x.negative},
}
"""How the inputs of each building block are drawn."""
