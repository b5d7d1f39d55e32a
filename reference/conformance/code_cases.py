"""Draws the inputs of the building blocks that compute codes, errors and pooled scores."""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

import numpy as np

from kvlab.reference.attention import attend, visible
from kvlab.reference.notation import Array
from kvlab.reference.quantization import WIDTHS, quantize, unpack
from kvlab.reference.streams import Source

Drawn = tuple[dict[str, Array], dict[str, Any]]
"""Inputs and parameters."""

Draw = Callable[[Source], Drawn]
Given = ParamSpec("Given")


def later(draw: Callable[Concatenate[Source, Given], Drawn]) -> Callable[Given, Draw]:
    """Let a function that draws from a source be called without it: the source is given later."""

    def without_source(*args: Given.args, **options: Given.kwargs) -> Draw:
        return lambda source: draw(source, *args, **options)

    return without_source


# --- quantisation --------------------------------------------------------------------------------


@later
def vectors(
    source: Source,
    rows: int,
    length: int,
    change: Callable[[Array], Array] = lambda x: x,
    **parameters: int | str,
) -> Drawn:
    """Draw vectors, and change them; for an operation with these parameters."""
    return {"x": change(source.normal(rows, length))}, parameters


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
    "plain": tuple(vectors(5, 32, bits=bits, group=16) for bits in WIDTHS),
    "block_not_dividing": tuple(vectors(3, 20, bits=bits, group=8) for bits in WIDTHS),
    "one_group": tuple(vectors(3, 16, bits=bits, group=16) for bits in (2, 4)),
    "constant_group": (
        vectors(4, 16, constant, bits=4, group=8),
        vectors(4, 16, constant_for_some, bits=2, group=8),
    ),
    "outliers": tuple(vectors(4, 32, with_outliers, bits=bits, group=32) for bits in (2, 4, 8)),
    "halves": (
        vectors(2, 8, with_halves, bits=2, group=8),
        vectors(2, 32, with_halves, bits=4, group=32),
    ),
    "large_values": tuple(vectors(3, 16, large, bits=bits, group=16) for bits in (2, 4)),
    "far_from_zero": tuple(vectors(3, 16, offset, bits=bits, group=8) for bits in (2, 4, 8)),
}


def strong_channel(x: Array) -> Array:
    """Make one channel 32 times as large."""
    return x * np.where(np.arange(x.shape[1]) == 1, 32.0, 1.0)


CHANNEL_QUANTISING = {
    "plain": tuple(vectors(16, 6, bits=bits, group=8) for bits in WIDTHS),
    "one_group": (vectors(8, 5, bits=4, group=8),),
    "outliers": (vectors(16, 6, strong_channel, bits=4, group=8),),
    "constant_group": (vectors(8, 4, constant, bits=4, group=4),),
}


@later
def stored(source: Source, rows: int, length: int, bits: int, group: int) -> Drawn:
    """Draw codes to be read back."""
    return coded(source.normal(rows, length), bits, group), {"bits": bits, "group": group}


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


@later
def codes_to_pack(source: Source, rows: int, length: int, bits: int) -> Drawn:
    """Draw codes."""
    return {"codes": source.integers(0, 2**bits, rows, length)}, {"bits": bits}


PACKING = {
    "plain": tuple(codes_to_pack(3, 16, bits) for bits in WIDTHS),
    "block_not_dividing": tuple(codes_to_pack(3, 11, bits) for bits in WIDTHS),
}


@later
def coded_cache(
    source: Source,
    shape: tuple[int, int, int, int],
    bits: int,
    group: int,
    softcap: float | None = None,
) -> Drawn:
    """Draw queries and a cache of codes."""
    G, rho, n, d = shape
    inputs = {
        "queries": 2 * source.normal(G, rho, 1, d),
        **coded(source.normal(G, n, d), bits, group, "key_"),
        **coded(source.normal(G, n, d), bits, group, "value_"),
    }
    return inputs, {"bits": bits, "group": group, "softcap": softcap}


CODED_ATTENTION = {
    "plain": tuple(coded_cache((2, 1, 24, 16), bits, 8) for bits in (2, 4, 8)),
    "gqa": (coded_cache((2, 3, 24, 16), 4, 16),),
    "block_not_dividing": (coded_cache((1, 2, 67, 16), 4, 16),),
    "softcap": (coded_cache((2, 2, 24, 16), 4, 16, 4.0),),
}


# --- CAOTE, pooling, outliers --------------------------------------------------------------------


@later
def retention(
    source: Source,
    change: Callable[[Array], Array],
    shape: tuple[int, int, int, int],
    fast: bool,
    norm: float = 2,
) -> Drawn:
    """Draw a softmax and values; ``shape`` is G, k, n, d."""
    G, k, n, d = shape
    queries, keys = 2 * source.normal(G, k, 1, 8), source.normal(G, n, 8)
    positions = np.tile(np.arange(n), (G, 1))
    mask = visible(np.array([n - 1]), positions)
    h = change(attend(queries, keys, keys, mask)[1][:, :, 0])
    return {"h": h, "values": source.normal(G, n, d)}, {"fast": fast, "norm": norm}


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


@later
def pooling(source: Source, n: int, kernel: int, how: str, border: str, G: int = 2) -> Drawn:
    """Draw scores to be pooled."""
    return {"x": source.uniform(G, n)}, {"kernel": kernel, "pooling": how, "border": border}


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


def rising(x: Array) -> Array:
    """Make every vector rise in equal steps."""
    return np.tile(np.arange(x.shape[1]) / 8.0, (len(x), 1))


OUTLIERS = {
    "plain": tuple(vectors(6, 32, with_outliers, over=over) for over in ("outliers", "block")),
    "none": (vectors(4, 16, rising, over="outliers"),),
    "constant_group": (vectors(3, 16, constant, over="outliers"),),
    "odd_shapes": (vectors(4, 13, with_outliers, over="outliers"),),
}
