"""Blocks of 32 channels with one float16 scale, as llama.cpp stores a quantised cache."""

import torch

from kvlab.fast.engine.storage import Code
from kvlab.fast.kernels.codes import Parts
from kvlab.fast.kernels.notation import RowVectors
from kvlab.fast.kernels.quantise import pack, unpack
from kvlab.reference.precisions import ggml as reference
from kvlab.reference.precisions.ggml import BLOCK


class GGML(Code[reference.GGML]):
    """One byte or half a byte per element, and two bytes per block."""

    def encode(self, x: RowVectors) -> Parts:
        padded = torch.nn.functional.pad(x.float(), (0, -x.shape[-1] % BLOCK))
        blocks = padded.unflatten(-1, (-1, BLOCK))
        largest = blocks.gather(-1, blocks.abs().argmax(dim=-1, keepdim=True)).double()
        scale = (largest.abs() / 127 if self.bits == 8 else largest / -8).float()
        scaled = blocks * torch.where(scale != 0, 1 / scale.double(), 0.0).float()
        if self.bits == 8:
            size = scaled.abs()
            whole = size.floor() + (size - size.floor() >= 0.5)
            codes = (scaled.sign() * whole).to(torch.int8).view(torch.uint8)
        else:
            codes = (scaled + 8.5).clamp(0, 15).to(torch.uint8)
            codes = codes.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
        codes = codes.flatten(-2)
        return codes if self.bits == 8 else pack(codes, self.bits), scale[..., 0].half()

    def decode(self, parts: Parts, d: int, dtype: torch.dtype) -> RowVectors:
        packed, scale = parts
        codes = unpack(packed, self.bits, scale.shape[-1] * BLOCK).unflatten(-1, (-1, BLOCK))
        if self.bits == 8:
            numbers = codes.view(torch.int8).float()
        else:
            numbers = codes.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2).float() - 8
        return (scale[..., None].float() * numbers).flatten(-2)[..., :d].to(dtype)
