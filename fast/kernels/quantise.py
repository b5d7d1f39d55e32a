"""Quantising in one pass, and what outliers say about how much it loses.

Bytes of `quantise`, for vectors of d channels of e bytes: read d·e, written d·bits/8 and 4 per
group. Bytes of `outlier_scores`: read d·e, written 8 per group.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from kvlab.fast.engine import quantization
from kvlab.fast.engine.quantization import Quantized
from kvlab.fast.kernels.choice import uses_triton


def quantise(x: Float[Tensor, "*rows length"], bits: int, group: int) -> Quantized:
    """Quantise and pack vectors along their last axis: see `kvlab.fast.engine.quantization`.

    Triton takes widths and groups that fill bytes and lie within a power of two; others take
    PyTorch: 3 bits, and a last group that is shorter.
    """
    fills_bytes = bits in (2, 4, 8) and group * bits % 8 == 0
    whole = group & (group - 1) == 0 and x.shape[-1] % group == 0
    if uses_triton(x, doubles=True) and fills_bytes and whole:
        from kvlab.fast.kernels.triton.quantise import quantise_triton

        return quantise_triton(x, bits, group)
    return quantization.quantize(x, bits, group)


def outlier_scores(
    x: Float[Tensor, "*rows length"], group: int, over: Literal["outliers", "block"] = "outliers"
) -> Float[Tensor, "*rows groups"]:
    """Mean distance of each group's outliers to its mean, 0 without outliers (DesireKV Eq. 6).

    An outlier lies more than 1.5 interquartile ranges outside the quartiles. Computed in float64.

    Args:
        x: keys.
        group: channels that are judged together.
        over: average over the outliers, or over the whole group so that their number counts.
    """
    if uses_triton(x) and group & (group - 1) == 0 and x.shape[-1] % group == 0:
        from kvlab.fast.kernels.triton.quantise import outlier_scores_triton

        return outlier_scores_triton(x, group, over)
    return torch.stack([one_group(block, over) for block in x.double().split(group, -1)], dim=-1)


def one_group(
    block: Float[Tensor, "*rows g"], over: Literal["outliers", "block"]
) -> Float[Tensor, "*rows"]:
    """Return the outlier score of one group of channels."""
    levels = torch.tensor([0.25, 0.75], dtype=block.dtype, device=block.device)
    first, third = torch.quantile(block, levels, dim=-1, keepdim=True)
    reach = 1.5 * (third - first)
    outlier = (block < first - reach) | (block > third + reach)
    distance = (block - block.mean(dim=-1, keepdim=True)).abs()
    total = (distance * outlier).sum(dim=-1)
    count = outlier.sum(dim=-1).clamp(min=1) if over == "outliers" else block.shape[-1]
    return total / count
