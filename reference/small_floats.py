"""Floating-point numbers of eight bits and fewer: sign, exponent, mantissa.

Formats: OCP 8-bit Floating Point Specification (e4m3, e5m2), OCP Microscaling Formats (e2m1).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from kvlab.reference.notation import Array


@dataclass(frozen=True)
class SmallFloat:
    """A format with subnormal numbers; numbers beyond its range become the largest number."""

    exponent_bits: int
    mantissa_bits: int
    largest: float

    @property
    def least_exponent(self) -> int:
        """Exponent of the smallest normal number."""
        return 2 - 2 ** (self.exponent_bits - 1)

    def encode(self, x: Float[Array, "*shape"]) -> UInt8[Array, "*shape"]:
        """Round to the nearest number of the format, halves to even.

        Raises:
            ValueError: if ``x`` holds NaN or infinity.
        """
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
