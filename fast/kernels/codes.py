"""Codes: how a vector is stored in few bits per element. Mirrors `kvlab.reference.codes`.

Codes are computed in float64, as the reference does: a vector is coded once, and its code must not
depend on the precision in which it was computed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch

from kvlab.fast.kernels.notation import Float, Shaped, Tensor, UInt8, Vectors
from kvlab.reference.codes import SmallFloat
from kvlab.reference.notation import Array

Parts = tuple[Shaped[Tensor, "*rows _"], ...]
"""What is stored of some vectors: packed codes first, then scales or norms."""

Scale = Float[Tensor, "N #G 1 1"]
"""Divisors of vectors before they are coded, in float32; one per sequence, or also per head."""


@dataclass(frozen=True)
class Coded:
    """Vectors of ``length`` elements in a code."""

    ALIKE: ClassVar = ("code", "length")

    code: Any
    """A `kvlab.fast.engine.storage.Code`, or `kvlab.fast.kernels.quantise.Groups`."""
    parts: Parts
    length: int

    def dequantize(self, dtype: torch.dtype) -> Float[Tensor, "*rows length"]:
        """Return the vectors, still divided by the scale."""
        return self.code.decode(self.parts, self.length, dtype)


def scale_to(largest: float, vectors: Vectors, per_head: bool = False) -> Float[Tensor, "N _ 1 1"]:
    """Return the scale that makes the largest element ``largest``; 1 if all elements are zero."""
    size = vectors.abs().amax(dim=(2, 3) if per_head else (1, 2, 3), keepdim=True)
    scale = (size.double() / largest).float()
    return torch.where(scale > 0, scale, 1)


# --- small floats --------------------------------------------------------------------------------


def encode_small(format: SmallFloat, x: Float[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    """Round to the nearest number of a format, halves to even, and at most the largest number."""
    size = x.abs().clamp(max=format.largest)
    exponent = torch.where(size > 0, torch.frexp(size).exponent - 1, format.least_exponent)
    exponent = exponent.clamp(min=format.least_exponent)
    steps = torch.ldexp(size, format.mantissa_bits - exponent).round().int()
    codes = ((exponent - format.least_exponent) << format.mantissa_bits) + steps
    sign = torch.signbit(x).int() << (format.exponent_bits + format.mantissa_bits)
    return (codes | sign).to(torch.uint8)


def decode_small(
    format: SmallFloat, codes: UInt8[Tensor, "*shape"], dtype: torch.dtype
) -> Float[Tensor, "*shape"]:
    """Return the numbers that codes stand for."""
    return constant(numbers_of, (format,), codes.device, dtype)[codes.long()]


def numbers_of(format: SmallFloat) -> Array:
    """Return the number that each code of a format stands for."""
    count = 2 ** (1 + format.exponent_bits + format.mantissa_bits)
    return format.decode(torch.arange(count, dtype=torch.uint8, device="cpu").numpy())


@cache
def constant(
    make: Callable[..., Array], arguments: tuple, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Return the result of a reference function as a tensor, which is made only once."""
    return torch.from_numpy(make(*arguments)).to(device, dtype)
