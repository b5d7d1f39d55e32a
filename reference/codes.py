"""Codes: how a vector is stored in few bits per element, independently of other vectors.

Formats of small floats: OCP 8-bit Floating Point Specification (e4m3, e5m2), OCP Microscaling
Formats (e2m1).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from kvlab.reference.notation import Array, Float, Rows, Shaped, UInt8, Vectors

Parts = tuple[Shaped[Array, "rows _"], ...]
"""What is stored of some vectors: packed codes first, then scales or norms."""

Scale = Float[Array, "#G 1 1"]
"""Divisor of vectors before they are coded, in float32; one number, or one per head."""


class Code(ABC):
    """A way to store a vector in few bits per element; codes of equal parameters are equal."""

    bits: int
    """Bits per element, without scales and norms."""

    @property
    def tokens(self) -> int:
        """Vectors that are stored together, and can only be kept or evicted together."""
        return 1

    def bits_with_scales(self, d: int) -> float:
        """Return the bits per element of a vector of ``d`` channels, with its scales and norms."""
        return 8 * sum(part.nbytes for part in self.encode(np.zeros((1, d)))) / d

    def scale(self, vectors: Vectors) -> Scale | None:
        """Return the scale that the first block of a layer fixes; None if the code has none."""
        return None

    @abstractmethod
    def encode(self, x: Rows) -> Parts:
        """Return what is stored of vectors; the caller has divided them by the scale.

        Raises:
            ValueError: if ``x`` cannot be stored.
        """

    @abstractmethod
    def decode(self, parts: Parts, d: int) -> Rows:
        """Return the vectors that attention reads, still divided by the scale."""


def scale_to(largest: float, vectors: Vectors, per_head: bool = False) -> Scale:
    """Return the scale that makes the largest element ``largest``; 1 if all elements are zero."""
    size = np.abs(vectors).max(axis=(1, 2) if per_head else (0, 1, 2), keepdims=True)
    if not (size <= np.finfo(np.float32).max).all():
        raise ValueError("vectors must be finite and within the range of float32 to be scaled")
    scale = (size / largest).astype(np.float32)
    return np.where(scale > 0, scale, np.float32(1))


@dataclass(frozen=True)
class SmallFloat:
    """Sign, exponent and mantissa, subnormal numbers too; what is too large becomes the largest."""

    exponent_bits: int
    mantissa_bits: int
    largest: float

    @property
    def least_exponent(self) -> int:
        """Exponent of the smallest normal number."""
        return 2 - 2 ** (self.exponent_bits - 1)

    def encode(self, x: Float[Array, "*shape"]) -> UInt8[Array, "*shape"]:
        """Round to the nearest number of the format, halves to even."""
        if not np.isfinite(x).all():
            raise ValueError("x must be finite to be stored as small floats, got NaN or infinity")
        size = np.minimum(np.abs(x), self.largest)
        exponent = np.where(size > 0, np.frexp(size)[1] - 1, self.least_exponent)
        exponent = np.maximum(exponent, self.least_exponent)
        steps = np.rint(np.ldexp(size, self.mantissa_bits - exponent)).astype(np.int64)
        codes = ((exponent - self.least_exponent) << self.mantissa_bits) + steps
        sign = np.signbit(x).astype(np.int64) << (self.exponent_bits + self.mantissa_bits)
        return (codes | sign).astype(np.uint8)

    def decode(self, codes: UInt8[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return the numbers; NaN for codes that `encode` never returns."""
        field = codes.astype(np.int64) & (2 ** (self.exponent_bits + self.mantissa_bits) - 1)
        exponent, mantissa = np.divmod(field, 2**self.mantissa_bits)
        mantissa = mantissa + np.where(exponent > 0, 2**self.mantissa_bits, 0)
        power = np.maximum(exponent, 1) - 1 + self.least_exponent - self.mantissa_bits
        size = np.ldexp(mantissa.astype(np.float64), power)
        size = np.where(size > self.largest, np.nan, size)
        return np.where(codes >> (self.exponent_bits + self.mantissa_bits), -size, size)


E4M3 = SmallFloat(4, 3, 448.0)
"""Without infinity, as PyTorch's ``float8_e4m3fn``."""
E5M2 = SmallFloat(5, 2, 57344.0)
E2M1 = SmallFloat(2, 1, 6.0)
"""0, 0.5, 1, 1.5, 2, 3, 4 and 6, and their negatives."""
