"""Makes the test vectors of the building blocks, group by group."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from kvlab.reference.attention import attend, visible
from kvlab.reference.conformance.building import UncertainError, finished
from kvlab.reference.conformance.case import Case
from kvlab.reference.conformance.drawing import Source
from kvlab.reference.notation import Array
from kvlab.reference.quantization import WIDTHS, quantize, unpack

Drawn = tuple[dict[str, Array], dict[str, Any]]
"""Inputs and parameters."""

ATTEMPTS = 100


def block_cases() -> Iterator[Case]:
    """Build all cases of all building blocks."""
    for operation, groups in GROUPS.items():
        for group, makers in groups.items():
            for number, make in enumerate(makers):
                yield first_certain(operation, group, number, make)


def first_certain(operation: str, group: str, number: int, make: Callable[[Source], Drawn]) -> Case:
    """Return the case of the first draw whose numbers can be stored in one way only.

    Raises:
        RuntimeError: if there is none.
    """
    for attempt in range(ATTEMPTS):
        inputs, parameters = make(Source(f"{operation} {group} {number}", attempt))
        try:
            return finished(operation, None, group, str(number), parameters, inputs)
        except UncertainError:
            continue
    raise RuntimeError(f"no draw of {operation}/{group}/{number} can be stored in one way only")


# --- attention -----------------------------------------------------------------------------------


def attention_inputs(
    source: Source,
    shape: tuple[int, int, int, int, int],
    scale: float = 1.0,
    precise: bool = False,
    softcap: float | None = None,
    gaps: bool = False,
) -> Drawn:
    """Draw queries of the newest tokens; ``shape`` is G, rho, m, n, d."""
    G, rho, m, n, d = shape
    draw = source.precise if precise else source.normal
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
    return inputs, {"softcap": softcap}


def without_values(drawn: Drawn) -> Drawn:
    """Leave the values out."""
    inputs, parameters = drawn
    return {name: x for name, x in inputs.items() if name != "values"}, parameters


def huge_logits(source: Source) -> Drawn:
    """Make all logits about 724."""
    inputs, parameters = attention_inputs(source, (2, 2, 3, 24, 8))
    inputs["queries"][..., 0], inputs["keys"][..., 0] = 64.0, 32.0
    return inputs, parameters


def low_logits(source: Source) -> Drawn:
    """Make all logits about −1448: a masked entry must not count for more than a visible one."""
    inputs, parameters = attention_inputs(source, (2, 2, 3, 24, 8))
    inputs["queries"][..., 0], inputs["keys"][..., 0] = 64.0, -64.0
    return inputs, parameters


def rows_apart(source: Source) -> Drawn:
    """Make rows of logits about 1448 and −1448 in turn; the newest entry's, twice as large.

    Each row has to subtract its own largest logit, and that of a visible entry.
    """
    inputs, parameters = attention_inputs(source, (2, 2, 4, 24, 8))
    inputs["queries"][..., 0] = 64.0 * (-1.0) ** np.add.outer(np.arange(2), np.arange(4))
    inputs["keys"][..., 0], inputs["keys"][:, -1, 0] = 64.0, 128.0
    return inputs, parameters


def far_positions(source: Source) -> Drawn:
    """Put entries around 2^15 and the block's own beyond 2^16: more than 16 bits hold."""
    inputs, parameters = attention_inputs(source, (2, 2, 3, 20, 8), 2.0, gaps=True)
    own = 70001 + np.arange(3)
    positions = inputs["positions"] + 2**15 - 40
    positions[:, -3:] = own
    return {**inputs, "positions": positions, "query_positions": own}, parameters


def equal_logits(source: Source) -> Drawn:
    """Make all logits zero."""
    inputs, parameters = attention_inputs(source, (2, 2, 2, 16, 8))
    return {**inputs, "keys": np.zeros_like(inputs["keys"])}, parameters


def one_heavy(source: Source) -> Drawn:
    """Let one entry have nearly all attention."""
    inputs, parameters = attention_inputs(source, (2, 2, 1, 24, 8))
    inputs["queries"][..., 0], inputs["keys"][..., 0] = 4.0, 0.0
    inputs["keys"][:, 7, 0] = 12.0
    return inputs, parameters


def flat_and_long(source: Source) -> Drawn:
    """Make attention flat over many entries."""
    inputs, parameters = attention_inputs(source, (1, 2, 1, 200, 8), scale=1 / 16)
    return {**inputs, "values": inputs["values"] + 2}, parameters


ATTENTION: Mapping[str, Callable[[Source], Drawn]] = {
    "plain": lambda s: attention_inputs(s, (2, 1, 1, 24, 8), 2.0),
    "gqa": lambda s: attention_inputs(s, (2, 3, 1, 24, 8), 2.0),
    "mqa": lambda s: attention_inputs(s, (1, 8, 1, 24, 16), 2.0),
    "causal_block": lambda s: attention_inputs(s, (2, 2, 6, 20, 8), 2.0),
    "gaps": lambda s: attention_inputs(s, (2, 2, 3, 20, 8), 2.0, gaps=True),
    "block_not_dividing": lambda s: attention_inputs(s, (1, 2, 1, 131, 8), 2.0),
    "odd_shapes": lambda s: attention_inputs(s, (3, 1, 3, 7, 5), 2.0),
    "single_entry": lambda s: attention_inputs(s, (2, 2, 1, 1, 8)),
    "ties": equal_logits,
    "extreme_logits": huge_logits,
    "low_logits": low_logits,
    "rows_apart": rows_apart,
    "far_positions": far_positions,
    "alpha_near_one": one_heavy,
    "softcap": lambda s: attention_inputs(s, (2, 2, 2, 24, 8), 4.0, softcap=4.0),
    "bf16_inputs": flat_and_long,
    "float32_inputs": lambda s: attention_inputs(s, (2, 2, 2, 24, 8), 2.0, precise=True),
}


# --- selection -----------------------------------------------------------------------------------


def selection(
    scores: Callable[[Source, int, int], Array], heads: int, n: int, safe: int, room: int
) -> Callable[[Source], Drawn]:
    """Return what draws scores and as many safe entries in every head."""

    def make(source: Source) -> Drawn:
        marked = source.marks(safe, heads, n)
        return {"scores": scores(source, heads, n), "safe": marked}, {"room": room}

    return make


def distinct(source: Source, G: int, n: int) -> Array:
    """Draw positive scores, all different."""
    return np.stack([source.permutation(n) for _ in range(G)]) / 32.0 + 1 / 32


def signed(source: Source, G: int, n: int) -> Array:
    """Draw scores around zero, all different."""
    return distinct(source, G, n) - n / 64


def below_zero(source: Source, G: int, n: int) -> Array:
    """Draw negative scores, all different."""
    return -distinct(source, G, n)


def above(power: int) -> Callable[[Source, int, int], Array]:
    """Return what draws scores above 2^power, all different: above marks such as 10^4 or 10^30."""

    def draw(source: Source, G: int, n: int) -> Array:
        return 2.0**power * (1 + distinct(source, G, n))

    return draw


def few_values(source: Source, G: int, n: int) -> Array:
    """Draw scores of three values."""
    return source.integers(0, 3, G, n) / 2.0


def all_equal(source: Source, G: int, n: int) -> Array:
    """Give every entry the same score."""
    return np.full((G, n), 0.375)


def both_zeros(source: Source, G: int, n: int) -> Array:
    """Give every entry the score 0 or −0, which are equal."""
    return np.where(source.marks(n // 2, G, n), 0.0, -0.0)


def wide_range(source: Source, G: int, n: int) -> Array:
    """Draw scores between 2^-120 and 2^120."""
    return 2.0 ** (source.integers(-120, 120, G, n)) * (1 + distinct(source, G, n) / 64)


def neighbours(source: Source, G: int, n: int) -> Array:
    """Draw scores that differ in their last digits."""
    return 1 + distinct(source, G, n) * 2.0**-18


def infinite(count: int) -> Callable[[Source, int, int], Array]:
    """Return what draws scores of which so many are infinite."""

    def draw(source: Source, G: int, n: int) -> Array:
        return np.where(source.marks(count, G, n), np.inf, distinct(source, G, n))

    return draw


SELECTION = {
    "plain": (selection(distinct, 2, 24, 4, 8), selection(distinct, 3, 131, 9, 50)),
    "nobody_safe": (selection(distinct, 2, 24, 0, 8),),
    "ties": (
        selection(few_values, 2, 24, 4, 8),
        selection(all_equal, 2, 17, 3, 5),
        selection(few_values, 1, 200, 16, 100),
        selection(infinite(18), 2, 24, 4, 8),
    ),
    "signed_zero": (selection(both_zeros, 2, 24, 4, 8),),
    "negative_scores": (
        selection(signed, 2, 24, 4, 8),
        selection(signed, 2, 24, 4, 16),
        selection(below_zero, 2, 24, 4, 8),
    ),
    "large_scores": (selection(above(17), 2, 24, 4, 8), selection(above(126), 2, 24, 4, 8)),
    "wide_range": (selection(wide_range, 2, 24, 4, 8),),
    "close_scores": (selection(neighbours, 2, 64, 4, 30),),
    "infinite_scores": (selection(infinite(3), 2, 24, 4, 8),),
    "no_room": (selection(distinct, 2, 24, 6, 0),),
    "budget_ge_length": (selection(distinct, 2, 12, 4, 8), selection(distinct, 2, 12, 4, 50)),
    "one_leaves": (selection(distinct, 2, 33, 8, 24),),
}


def moving(G: int, n: int, d: int, kept: int, first: int = 0) -> Callable[[Source], Drawn]:
    """Return what draws entries, their state, and who stays; all whole numbers from ``first``."""

    def make(source: Source) -> Drawn:
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

    return make


COMPACTION = {
    "plain": (moving(2, 16, 8, 9),),
    "odd_shapes": (moving(3, 33, 5, 17),),
    "one_leaves": (moving(2, 12, 4, 11),),
    "one_stays": (moving(2, 12, 4, 1),),
    "budget_ge_length": (moving(2, 7, 4, 7),),
    "far_positions": (moving(2, 16, 8, 9, first=70000),),
}


# --- quantisation --------------------------------------------------------------------------------


def vectors(
    rows: int, length: int, bits: int, group: int, change: Callable[[Array], Array] = lambda x: x
) -> Callable[[Source], Drawn]:
    """Return what draws vectors to be quantised."""

    def make(source: Source) -> Drawn:
        x = change(source.normal(rows, length))
        return {"x": x}, {"bits": bits, "group": group}

    return make


def constant(x: Array) -> Array:
    """Make all elements 1.25."""
    return np.full_like(x, 1.25)


def constant_for_some(x: Array) -> Array:
    """Make every second vector constant."""
    return np.where(np.arange(len(x))[:, None] % 2 == 0, -0.75, x)


def with_outliers(x: Array) -> Array:
    """Make one element of each vector 64 times as large."""
    spiked = x.copy()
    spiked[:, 5] *= 64
    return spiked


def with_halves(x: Array) -> Array:
    """Multiples of half a step between 0 and the largest code of 2 bits and of 4 bits."""
    count = x.shape[1]
    return np.tile(np.minimum(np.arange(count) * 0.5, (count - 2) * 0.5), (len(x), 1))


def large(x: Array) -> Array:
    """Scale close to the largest float16."""
    return x * 8192


def offset(x: Array) -> Array:
    """Move far away from zero, with a small spread."""
    return x / 32 + 100


QUANTISING = {
    "plain": tuple(vectors(5, 32, bits, 16) for bits in WIDTHS),
    "block_not_dividing": tuple(vectors(3, 20, bits, 8) for bits in WIDTHS),
    "one_group": tuple(vectors(3, 16, bits, 16) for bits in (2, 4)),
    "constant_group": (vectors(4, 16, 4, 8, constant), vectors(4, 16, 2, 8, constant_for_some)),
    "outliers": tuple(vectors(4, 32, bits, 32, with_outliers) for bits in (2, 4, 8)),
    "halves": (vectors(2, 8, 2, 8, with_halves), vectors(2, 32, 4, 32, with_halves)),
    "large_values": tuple(vectors(3, 16, bits, 16, large) for bits in (2, 4)),
    "far_from_zero": tuple(vectors(3, 16, bits, 8, offset) for bits in (2, 4, 8)),
}


def token_blocks(
    t: int, d: int, bits: int, group: int, change: Callable[[Array], Array] = lambda x: x
) -> Callable[[Source], Drawn]:
    """Return what draws tokens to be quantised by channel."""

    def make(source: Source) -> Drawn:
        return {"x": change(source.normal(t, d))}, {"bits": bits, "group": group}

    return make


def strong_channel(x: Array) -> Array:
    """Make one channel 32 times as large."""
    return x * np.where(np.arange(x.shape[1]) == 1, 32.0, 1.0)


CHANNEL_QUANTISING = {
    "plain": tuple(token_blocks(16, 6, bits, 8) for bits in WIDTHS),
    "one_group": (token_blocks(8, 5, 4, 8),),
    "outliers": (token_blocks(16, 6, 4, 8, strong_channel),),
    "constant_group": (token_blocks(8, 4, 4, 4, constant),),
}


def stored(rows: int, length: int, bits: int, group: int) -> Callable[[Source], Drawn]:
    """Return what draws codes to be read back."""

    def make(source: Source) -> Drawn:
        return coded(source.normal(rows, length), bits, group), {"bits": bits, "group": group}

    return make


def coded(x: Array, bits: int, group: int, prefix: str = "") -> dict[str, Array]:
    """Return codes, scales and zero points as inputs."""
    found = quantize(x, bits, group)
    return {
        f"{prefix}codes": unpack(found.codes, bits, found.length),
        f"{prefix}scale": found.scale.astype(np.float64),
        f"{prefix}zero": found.zero.astype(np.float64),
    }


DEQUANTISING = {
    "plain": tuple(stored(5, 32, bits, 16) for bits in WIDTHS),
    "block_not_dividing": tuple(stored(3, 20, bits, 8) for bits in (2, 4)),
}


def codes_to_pack(rows: int, length: int, bits: int) -> Callable[[Source], Drawn]:
    """Return what draws codes."""

    def make(source: Source) -> Drawn:
        return {"codes": source.integers(0, 2**bits, rows, length)}, {"bits": bits}

    return make


PACKING = {
    "plain": tuple(codes_to_pack(3, 16, bits) for bits in WIDTHS),
    "block_not_dividing": tuple(codes_to_pack(3, 11, bits) for bits in WIDTHS),
}


def coded_cache(
    shape: tuple[int, int, int, int], bits: int, group: int, softcap: float | None = None
) -> Callable[[Source], Drawn]:
    """Return what draws queries and a cache of codes."""

    def make(source: Source) -> Drawn:
        G, rho, n, d = shape
        inputs = {
            "queries": 2 * source.normal(G, rho, 1, d),
            **coded(source.normal(G, n, d), bits, group, "key_"),
            **coded(source.normal(G, n, d), bits, group, "value_"),
        }
        return inputs, {"bits": bits, "group": group, "softcap": softcap}

    return make


CODED_ATTENTION = {
    "plain": tuple(coded_cache((2, 1, 24, 16), bits, 8) for bits in (2, 4, 8)),
    "gqa": (coded_cache((2, 3, 24, 16), 4, 16),),
    "block_not_dividing": (coded_cache((1, 2, 67, 16), 4, 16),),
    "softcap": (coded_cache((2, 2, 24, 16), 4, 16, 4.0),),
}


# --- CAOTE, pooling, outliers --------------------------------------------------------------------


def retention(
    change: Callable[[Array], Array], shape: tuple[int, int, int, int], fast: bool, norm: float = 2
) -> Callable[[Source], Drawn]:
    """Draw a softmax and values; ``shape`` is G, k, n, d."""

    def make(source: Source) -> Drawn:
        G, k, n, d = shape
        queries, keys = 2 * source.normal(G, k, 1, 8), source.normal(G, n, 8)
        positions = np.tile(np.arange(n), (G, 1))
        mask = visible(np.array([n - 1]), positions)
        h = change(attend(queries, keys, keys, mask)[1][:, :, 0])
        return {"h": h, "values": source.normal(G, n, d)}, {"fast": fast, "norm": norm}

    return make


def as_drawn(h: Array) -> Array:
    """Leave a distribution as it is."""
    return h


def heavy(h: Array) -> Array:
    """Give one entry all mass but 2^-23."""
    light = h / h.sum(axis=-1, keepdims=True) * 2.0**-23
    light[..., 5] = 1 - 2.0**-23
    return light


def all_mass(h: Array) -> Array:
    """Give one entry all mass."""
    one = np.zeros_like(h)
    one[..., 3] = 1.0
    return one


def half_mass(h: Array) -> Array:
    """Give two entries half of the mass each."""
    split = np.zeros_like(h)
    split[..., 2] = split[..., 9] = 0.5
    return split


def uniform(h: Array) -> Array:
    """Give every entry the same mass."""
    return np.full_like(h, 1 / h.shape[-1])


ERRORS = {
    "plain": tuple(retention(as_drawn, (2, 1, 24, 8), fast) for fast in (False, True)),
    "gqa": tuple(retention(as_drawn, (2, 3, 24, 8), fast) for fast in (False, True)),
    "odd_shapes": tuple(retention(as_drawn, (3, 2, 7, 5), fast) for fast in (False, True)),
    "block_not_dividing": (retention(as_drawn, (1, 1, 131, 8), False),),
    "uniform": tuple(retention(uniform, (2, 1, 16, 8), fast) for fast in (False, True)),
    "half_mass": (retention(half_mass, (2, 1, 24, 8), False),),
    "alpha_near_one": (retention(heavy, (2, 1, 24, 8), False),),
    "all_mass": (retention(all_mass, (2, 1, 24, 8), False),),
    "one_norm": (retention(as_drawn, (2, 1, 24, 8), False, 1.0),),
}


def pooling(n: int, kernel: int, how: str, border: str, G: int = 2) -> Callable[[Source], Drawn]:
    """Return what draws scores to be pooled."""

    def make(source: Source) -> Drawn:
        return {"x": source.uniform(G, n)}, {"kernel": kernel, "pooling": how, "border": border}

    return make


POOLING = {
    "plain": (
        pooling(24, 5, "mean", "zero"),
        pooling(24, 5, "mean", "shrink"),
        pooling(24, 7, "max", "zero"),
    ),
    "kernel_one": (pooling(9, 1, "mean", "zero"), pooling(9, 1, "max", "zero")),
    "kernel_ge_length": (
        pooling(4, 7, "mean", "zero"),
        pooling(4, 7, "mean", "shrink"),
        pooling(4, 7, "max", "zero"),
    ),
}


def channels(
    rows: int, length: int, over: str, change: Callable[[Array], Array] = lambda x: x
) -> Callable[[Source], Drawn]:
    """Return what draws groups of channels."""

    def make(source: Source) -> Drawn:
        return {"x": change(source.normal(rows, length))}, {"over": over}

    return make


OUTLIERS = {
    "plain": tuple(channels(6, 32, over, with_outliers) for over in ("outliers", "block")),
    "none": (channels(4, 16, "outliers", lambda x: np.tile(np.arange(16) / 8.0, (4, 1))),),
    "constant_group": (channels(3, 16, "outliers", constant),),
    "odd_shapes": (channels(4, 13, "outliers", with_outliers),),
}


def each(makers: Mapping[str, Callable[[Source], Drawn]]):
    """Return one case per group."""
    return {group: (make,) for group, make in makers.items()}


def valueless(makers: Mapping[str, Callable[[Source], Drawn]]):
    """Return the same cases without values."""
    return {
        group: (lambda source, make=make: without_values(make(source)),)
        for group, make in makers.items()
    }


GROUPS: Mapping[str, Mapping[str, tuple[Callable[[Source], Drawn], ...]]] = {
    "attend": each(ATTENTION),
    "attention": valueless(ATTENTION),
    "received_attention": valueless(ATTENTION),
    "keep_set": SELECTION,
    "compact": COMPACTION,
    "quantize": QUANTISING,
    "quantize_channels": CHANNEL_QUANTISING,
    "dequantize": DEQUANTISING,
    "quantize_dequantize": {k: v for k, v in QUANTISING.items() if k != "halves"},
    "pack": PACKING,
    "attend_coded": CODED_ATTENTION,
    "eviction_error": ERRORS,
    "pool": POOLING,
    "outlier_score": OUTLIERS,
}
"""Building block → group → cases."""
