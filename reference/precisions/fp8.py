"""Floats of 8 bits with a scale that the first block fixes, as engines with static scales have.

Equations (numbered here):

1. s = max |x| / largest, in float32: over the first block of a layer, keys and values apart, over
   all KV heads or in each of them
2. code = x/s, rounded to the nearest number of the format, halves to even, at most the largest
3. x̂ = s·code

Later vectors keep the scale of the first block: what is larger than anything in it saturates.
"""

from dataclasses import dataclass
from typing import Literal

from kvlab.reference.codes import E4M3, E5M2, Code, Parts, Scale, scale_to
from kvlab.reference.notation import Rows, Vectors
from kvlab.reference.precisions import Family, OnArrival

FORMATS = {"e4m3": E4M3, "e5m2": E5M2}


@dataclass(frozen=True)
class FP8(Code):
    """One byte per element."""

    format: Literal["e4m3", "e5m2"]
    per_head: bool
    """Whether each KV head has a scale of its own."""

    bits = 8

    def scale(self, vectors: Vectors) -> Scale:
        return scale_to(FORMATS[self.format].largest, vectors, self.per_head)  # [FP8 1]

    def encode(self, x: Rows) -> Parts:
        return (FORMATS[self.format].encode(x),)  # [FP8 2]

    def decode(self, parts: Parts, d: int) -> Rows:
        return FORMATS[self.format].decode(parts[0])  # [FP8 3]


def both(format: Literal["e4m3", "e5m2"], per_head: bool) -> OnArrival:
    """Store keys and values alike."""
    return OnArrival(FP8(format, per_head), FP8(format, per_head))


FAMILY = Family(
    source="OCP 8-bit Floating Point Specification; vLLM's documentation of its FP8 KV cache",
    equations=("FP8 1", "FP8 2", "FP8 3"),
    precisions={
        "fp8": both("e4m3", per_head=False),
        "fp8_head": both("e4m3", per_head=True),
        "fp8_e5m2": both("e5m2", per_head=False),
        "fp8_e5m2_head": both("e5m2", per_head=True),
    },
)
