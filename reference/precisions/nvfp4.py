"""NVFP4: floats of 4 bits in blocks of 16 channels, with scales on two levels.

Equations (numbered here):

1. s = max |x| / (448·6), in float32: over the first block of a layer, keys and values apart
2. scale of 16 channels: b = e4m3(max |x/s| / 6)
3. code = e2m1(x/s / b), at most 6; 0 where b = 0
4. x̂ = s·b·code

Two codes share a byte, the low half first. The last block is shorter where 16 does not divide d.
Later vectors keep s: a block of channels whose scale would exceed 448 saturates.
"""

from dataclasses import dataclass

import numpy as np

from kvlab.reference.codes import E2M1, E4M3, Code, Parts, Scale, scale_to
from kvlab.reference.notation import Rows, Vectors
from kvlab.reference.precisions import Family, OnArrival
from kvlab.reference.quantization import pack, per_element, unpack

BLOCK = 16
"""Channels that share a scale."""


@dataclass(frozen=True)
class NVFP4(Code):
    """Half a byte per element, and a byte per block of channels."""

    bits = 4

    def scale(self, vectors: Vectors) -> Scale:
        return scale_to(E4M3.largest * E2M1.largest, vectors)  # [NVFP4 1]

    def encode(self, x: Rows) -> Parts:
        d = x.shape[1]
        largest = np.maximum.reduceat(np.abs(x), np.arange(0, d, BLOCK), axis=1)
        scales = E4M3.encode(largest / E2M1.largest)  # [NVFP4 2]
        divisor = per_element(E4M3.decode(scales), BLOCK, d)
        scaled = np.divide(x, divisor, out=np.zeros_like(x), where=divisor > 0)
        return pack(E2M1.encode(scaled), self.bits), scales  # [NVFP4 3]

    def decode(self, parts: Parts, d: int) -> Rows:
        codes, scales = parts
        numbers = E2M1.decode(unpack(codes, self.bits, d))
        return per_element(E4M3.decode(scales), BLOCK, d) * numbers  # [NVFP4 4]


FAMILY = Family(
    source="NVIDIA's NVFP4 format; OCP Microscaling Formats (e2m1)",
    equations=("NVFP4 1", "NVFP4 2", "NVFP4 3", "NVFP4 4"),
    precisions={"nvfp4": OnArrival(NVFP4(), NVFP4())},
)
