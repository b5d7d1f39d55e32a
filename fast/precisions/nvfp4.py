"""NVFP4: floats of 4 bits in blocks of 16 channels, with scales on two levels."""

import torch

from kvlab.fast.engine.storage import Code
from kvlab.fast.kernels.codes import Parts, Scale, decode_small, encode_small, scale_to
from kvlab.fast.kernels.notation import RowVectors, Vectors
from kvlab.fast.kernels.quantise import pack, per_element, unpack
from kvlab.reference.codes import E2M1, E4M3
from kvlab.reference.precisions import nvfp4 as reference
from kvlab.reference.precisions.nvfp4 import BLOCK


class NVFP4(Code[reference.NVFP4]):
    """Half a byte per element, and a byte per block of channels."""

    def scale(self, vectors: Vectors) -> Scale:
        return scale_to(E4M3.largest * E2M1.largest, vectors)

    def encode(self, x: RowVectors) -> Parts:
        d = x.shape[-1]
        padded = torch.nn.functional.pad(x.abs(), (0, -d % BLOCK))
        largest = padded.unflatten(-1, (-1, BLOCK)).amax(dim=-1)
        scales = encode_small(E4M3, largest / E2M1.largest)
        divisor = per_element(decode_small(E4M3, scales, x.dtype), BLOCK, d)
        scaled = torch.where(divisor > 0, x / divisor, 0.0)
        return pack(encode_small(E2M1, scaled), self.bits), scales

    def decode(self, parts: Parts, d: int, dtype: torch.dtype) -> RowVectors:
        codes, scales = parts
        numbers = decode_small(E2M1, unpack(codes, self.bits, d), dtype)
        return per_element(decode_small(E4M3, scales, dtype), BLOCK, d) * numbers
