"""Asymmetric uniform quantisation with packed codes.

A group of elements shares one scale Δ and one zero point z, both stored in float16; an element is
stored as a code of ``bits`` bits, and codes are packed without gaps into bytes.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvlab.reference.notation import Array, Float, UInt8

WIDTHS = (2, 3, 4, 8)
"""Code widths in bits that can be stored."""

FULL_BITS = 16
"""Bits that an unquantised element counts for; the reference computes with it in float64."""

OutlierMean = Literal["outliers", "block"]
"""Over what a group's outlier score is a mean: its outliers, or all its elements."""


def pack(codes: UInt8[Array, "... length"], bits: int) -> UInt8[Array, "... bytes"]:
    """Write the low ``bits`` bits of each code one after another into bytes, lowest bit first."""
    planes = (codes[..., None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(planes.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little")


def unpack(
    packed: UInt8[Array, "... bytes"], bits: int, length: int
) -> UInt8[Array, "... {length}"]:
    """Invert `pack`."""
    planes = np.unpackbits(packed, axis=-1, count=length * bits, bitorder="little")
    planes = planes.reshape(*packed.shape[:-1], length, bits)
    return (planes << np.arange(bits, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)


@dataclass(frozen=True)
class Quantized:
    """Vectors of ``length`` elements, quantised in consecutive groups of ``group`` elements.

    The last group is shorter where ``group`` does not divide ``length``.
    """

    codes: UInt8[Array, "... bytes"]
    scale: Float[Array, "... groups"]
    zero: Float[Array, "... groups"]
    bits: int
    group: int
    length: int

    def dequantize(self) -> Float[Array, "... length"]:
        """Return x̂ = Δ·code + z."""
        codes = unpack(self.codes, self.bits, self.length)
        scale = per_element(self.scale.astype(np.float64), self.group, self.length)
        zero = per_element(self.zero.astype(np.float64), self.group, self.length)
        return scale * codes + zero  # [KIVI 3]


def quantize(x: Float[Array, "... length"], bits: int, group: int) -> Quantized:
    """Quantise each vector of ``x`` along its last axis.

    Source: KIVI (arXiv 2402.02750). Halves round to even; a constant group gets codes 0.

    Raises:
        ValueError: if ``bits`` is no width of `WIDTHS`, ``group`` is not positive, or ``x``
            holds a value that float16 cannot hold.
    """
    if bits not in WIDTHS:
        raise ValueError(f"bits = {bits} must be one of {WIDTHS}")
    if group < 1:
        raise ValueError(f"group = {group} must be at least 1")
    length = x.shape[-1]
    starts = np.arange(0, length, group)
    low = np.minimum.reduceat(x, starts, axis=-1)
    high = np.maximum.reduceat(x, starts, axis=-1)
    largest_code = 2**bits - 1
    spread = (high - low) / largest_code  # [KIVI 1]
    if not (np.abs(x) <= np.finfo(np.float16).max).all() or not (spread < 65504).all():
        raise ValueError("x must be finite and within the range of float16 to be quantised")
    scale, zero = spread.astype(np.float16), low.astype(np.float16)
    step = per_element(scale.astype(np.float64), group, length)
    offset = x - per_element(zero.astype(np.float64), group, length)
    steps = np.divide(offset, step, out=np.zeros_like(offset), where=step > 0)
    codes = np.rint(np.clip(steps, 0, largest_code)).astype(np.uint8)  # [KIVI 2]
    return Quantized(pack(codes, bits), scale, zero, bits, group, length)


def per_element(
    per_group: Float[Array, "... groups"], group: int, length: int
) -> Float[Array, "... {length}"]:
    """Repeat what each group of elements shares for its elements; the last group may be shorter."""
    return np.repeat(per_group, group, axis=-1)[..., :length]
