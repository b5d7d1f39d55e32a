"""Launches the kernels of `keep`."""

# pyright: reportArgumentType=false
# Triton makes constexpr of plain numbers.

import torch
import triton
from torch import Tensor

from kvlab.fast.kernels.triton.keep import keep_sets
from kvlab.fast.kernels.triton.strides import on_its_device, per_head


@on_its_device
def keep_slots_triton(scores: Tensor, safe: Tensor | None, positions: Tensor, width: int) -> Tensor:
    """Do what `keep_slots` says, in Triton: ascending slots, ``width`` of which stay everywhere."""
    N, G, n = positions.shape
    scores = scores.to(torch.float32).contiguous()
    flat = per_head(positions)
    marks = flat if safe is None else safe.contiguous().view(torch.uint8)
    keep = torch.empty((N, G, width), dtype=torch.int64, device=positions.device)
    block = min(1024, max(16, triton.next_power_of_2(n)))
    keep_sets[(N * G,)](
        scores, marks, flat, keep,
        n, width, n, flat.stride(0), G,
        SCORE_HEADS=scores.shape[1], BLOCK_N=block, SAFE=safe is not None,
    )  # fmt: skip
    return keep
