"""Floats of 8 bits with a scale that the first block fixes."""

import torch

from kvlab.fast.engine.storage import Code
from kvlab.fast.kernels.codes import Parts, Scale, decode_small, encode_small, scale_to
from kvlab.fast.kernels.notation import Float, Tensor
from kvlab.reference.precisions import fp8 as reference


class FP8(Code[reference.FP8]):
    """One byte per element."""

    def scale(self, vectors: Float[Tensor, "N G n d"]) -> Scale:
        return scale_to(reference.FORMATS[self.spec.format].largest, vectors, self.spec.per_head)

    def encode(self, x: Float[Tensor, "*rows d"]) -> Parts:
        return (encode_small(reference.FORMATS[self.spec.format], x),)

    def decode(self, parts: Parts, d: int, dtype: torch.dtype) -> Float[Tensor, "*rows d"]:
        return decode_small(reference.FORMATS[self.spec.format], parts[0], dtype)
