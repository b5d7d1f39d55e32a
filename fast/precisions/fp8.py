"""Floats of 8 bits with a scale that the first block fixes."""

import torch

from kvlab.fast.engine.storage import Code
from kvlab.fast.kernels.codes import Parts, Scale, decode_small, encode_small, scale_to
from kvlab.fast.kernels.notation import RowVectors, Vectors
from kvlab.reference.precisions import fp8 as reference


class FP8(Code[reference.FP8]):
    """One byte per element."""

    def scale(self, vectors: Vectors) -> Scale:
        return scale_to(reference.FORMATS[self.spec.format].largest, vectors, self.spec.per_head)

    def encode(self, x: RowVectors) -> Parts:
        return (encode_small(reference.FORMATS[self.spec.format], x),)

    def decode(self, parts: Parts, d: int, dtype: torch.dtype) -> RowVectors:
        return decode_small(reference.FORMATS[self.spec.format], parts[0], dtype)
