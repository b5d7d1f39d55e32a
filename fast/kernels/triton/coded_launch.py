"""Launches the kernels of `coded`."""

# pyright: reportArgumentType=false
# Triton makes constexpr of plain numbers.

import torch
import triton
from torch import Tensor

from kvlab.fast.kernels.triton.coded import outliers_of_groups, quantise_groups
from kvlab.fast.kernels.triton.strides import on_its_device
from kvlab.fast.quantization import Quantized


@on_its_device
def quantise_triton(x: Tensor, bits: int, group: int) -> Quantized:
    """Do what `quantise` says, in Triton."""
    length = x.shape[-1]
    flat = x.reshape(-1, length).contiguous()
    rows, groups = flat.shape[0], length // group
    codes = torch.empty((rows, length * bits // 8), dtype=torch.uint8, device=x.device)
    scales, zeros = (
        torch.empty((rows, groups), dtype=torch.float16, device=x.device) for _ in range(2)
    )
    if rows:
        quantise_groups[lambda sizes: (triton.cdiv(rows, sizes["BLOCK"]), groups)](
            flat, codes, scales, zeros, rows,
            LENGTH=length, GROUP=group, GROUPS=groups, BITS=bits,
        )  # fmt: skip
    leading = x.shape[:-1]
    return Quantized(
        codes.view(*leading, length * bits // 8),
        scales.view(*leading, groups),
        zeros.view(*leading, groups),
        bits,
        group,
        length,
    )


@on_its_device
def outlier_scores_triton(x: Tensor, group: int, over: str) -> Tensor:
    """Do what `outlier_scores` says, in Triton."""
    length = x.shape[-1]
    flat = x.reshape(-1, length).contiguous()
    rows, groups = flat.shape[0], length // group
    scores = torch.empty((rows, groups), dtype=torch.float64, device=x.device)
    block = 16
    if rows:
        outliers_of_groups[(triton.cdiv(rows, block), groups)](
            flat, scores, rows,
            LENGTH=length, GROUP=group, GROUPS=groups, OF_OUTLIERS=over == "outliers", BLOCK=block,
        )  # fmt: skip
    return scores.view(*x.shape[:-1], groups)
