"""Blocks of 32 channels with one float16 scale, as llama.cpp stores a quantised cache.

Equations (numbered here), all in float32:

1. q8_0: s = max |x| / 127 over a block; code = x · (1/s), halves away from zero
2. q4_0: s = x_m / -8 for the block's first element x_m of the largest size; code = x · (1/s) + 8.5
   without its fraction, from 0 to 15
3. x̂ = s·code, of q4_0 s·(code - 8), with s rounded to float16 behind the codes

Codes are the bytes of ggml's blocks: of q4_0, channels j and j + 16 share a byte, the former in the
low half. Blocks are filled up with zeros where 32 does not divide d; llama.cpp refuses such a d.
"""

from dataclasses import dataclass

import numpy as np

from kvlab.reference.codes import Code, Parts
from kvlab.reference.notation import Rows
from kvlab.reference.precisions import Family, OnArrival
from kvlab.reference.quantization import pack, unpack

BLOCK = 32
"""Channels that share a scale."""


@dataclass(frozen=True)
class GGML(Code):
    """One byte or half a byte per element, and two bytes per block."""

    bits: int

    def encode(self, x: Rows) -> Parts:
        blocks = np.pad(x.astype(np.float32), ((0, 0), (0, -x.shape[1] % BLOCK)))
        blocks = blocks.reshape(len(x), -1, BLOCK)
        place = np.abs(blocks).argmax(axis=2, keepdims=True)
        largest = np.take_along_axis(blocks, place, axis=2)
        scale = np.abs(largest) / np.float32(127) if self.bits == 8 else largest / np.float32(-8)
        stored = scale[..., 0].astype(np.float16)
        if not np.isfinite(stored).all():
            raise ValueError("x must be finite, and its scales within the range of float16")
        scaled = blocks * np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
        if self.bits == 8:
            size = np.abs(scaled)
            whole = np.floor(size) + (size - np.floor(size) >= 0.5)
            codes = (np.sign(scaled) * whole).astype(np.int8).view(np.uint8)  # [GGML 1]
        else:
            codes = (scaled + np.float32(8.5)).astype(np.uint8).clip(0, 15)  # [GGML 2]
            codes = codes.reshape(*codes.shape[:2], 2, -1).swapaxes(2, 3)
        return pack(codes.reshape(len(x), -1), self.bits), stored

    def decode(self, parts: Parts, d: int) -> Rows:
        packed, scale = parts
        codes = unpack(packed, self.bits, scale.shape[1] * BLOCK).reshape(*scale.shape, BLOCK)
        if self.bits == 8:
            numbers = codes.view(np.int8).astype(float)
        else:
            numbers = codes.reshape(*scale.shape, -1, 2).swapaxes(2, 3).reshape(codes.shape) - 8.0
        read = scale[..., None].astype(float) * numbers  # [GGML 3]
        return read.reshape(len(packed), -1)[:, :d]


FAMILY = Family(
    source="llama.cpp's K and V caches; the Python package gguf",
    equations=("GGML 1", "GGML 2", "GGML 3"),
    precisions={"q8_0": OnArrival(GGML(8), GGML(8)), "q4_0": OnArrival(GGML(4), GGML(4))},
)
