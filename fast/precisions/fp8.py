"""Floats of 8 bits with a scale that the first block fixes."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from kvlab.fast.engine.codes import Code, Parts, Scale, decode_small, encode_small, scale_to
from kvlab.fast.engine.policy import twin_of
from kvlab.reference.precisions import fp8 as reference


@twin_of(reference.FP8)
@dataclass(frozen=True)
class FP8(Code):
    """One byte per element."""

    format: Literal["e4m3", "e5m2"]
    per_head: bool

    @property
    def bits(self) -> int:
        return 8

    @property
    def couples_heads(self) -> bool:
        return not self.per_head

    def scale(self, vectors: Float[Tensor, "N G n d"]) -> Scale:
        return scale_to(reference.FORMATS[self.format].largest, vectors, self.per_head)

    def encode(self, x: Float[Tensor, "*rows d"]) -> Parts:
        return (encode_small(reference.FORMATS[self.format], x),)

    def decode(self, parts: Parts, d: int, dtype: torch.dtype) -> Float[Tensor, "*rows d"]:
        return decode_small(reference.FORMATS[self.format], parts[0], dtype)
