"""Vectors of one precision, as attention kernels take them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.quantization import Quantized
from kvlab.reference.quantization import FULL_BITS


@dataclass(frozen=True)
class CodedTable:
    """Vectors of one precision, and the slots of the entries that they belong to."""

    slots: Int[Tensor, "N G rows"]
    """−1 for rows that belong to no entry."""
    vectors: Float[Tensor, "N G rows d"] | Quantized
    """As they are, or codes in groups of consecutive channels."""
    by_channel: bool = False
    """Whether codes are in groups of consecutive rows instead: ``[N, G, blocks, d, bytes]``."""

    @property
    def bits(self) -> int:
        """Bits per element."""
        return self.vectors.bits if isinstance(self.vectors, Quantized) else FULL_BITS

    def read(self, dtype: torch.dtype) -> Float[Tensor, "N G rows d"]:
        """Dequantise."""
        if isinstance(self.vectors, Quantized):
            read = self.vectors.dequantize(dtype)
            return read.transpose(-1, -2).flatten(2, 3) if self.by_channel else read
        return self.vectors.to(dtype)
