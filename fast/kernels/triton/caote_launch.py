"""Launches the kernels of `caote`."""

# pyright: reportArgumentType=false
# Triton makes constexpr of plain numbers.

import torch
import triton
from torch import Tensor

from kvlab.fast.kernels.caote import SAFE_MASS
from kvlab.fast.kernels.triton.caote import errors_of_entries, find_heaviest
from kvlab.fast.kernels.triton.strides import on_its_device, per_head


@on_its_device
def eviction_errors_triton(h: Tensor, values: Tensor, fast: bool, output: Tensor | None) -> Tensor:
    """Do what `eviction_errors` says, in Triton."""
    N, G, rows, n = h.shape
    d, heads = values.shape[3], N * G
    h = h.to(torch.float32).contiguous()
    if output is None:
        weighted = None if fast else torch.matmul(h, values.to(torch.float32))
        output = h.new_zeros(N, G, rows, d) if weighted is None else weighted
    output = output.to(torch.float32).contiguous()
    flat = per_head(values)
    others = torch.empty((heads, rows, d), dtype=torch.float32, device=h.device)
    heaviest = torch.empty((heads, rows), dtype=torch.int32, device=h.device)
    mass = torch.empty((heads, rows), dtype=torch.float32, device=h.device)
    errors = torch.empty((heads, n), dtype=torch.float32, device=h.device)
    wide = triton.next_power_of_2(d)
    block = 64
    find_heaviest[(heads, rows)](
        h, flat, output, others, heaviest, mass,
        n, flat.stride(0), flat.stride(1), 0.0 if fast else SAFE_MASS,
        ROWS=rows, D=d, BLOCK_N=block, BLOCK_D=wide,
    )  # fmt: skip
    points = values.to(torch.float32).mean(dim=2) if fast else output
    errors_of_entries[(heads, triton.cdiv(n, block))](
        h, flat, points.contiguous(), others, heaviest, mass, errors,
        n, flat.stride(0), flat.stride(1), torch.finfo(torch.float32).max,
        ROWS=rows, D=d, BLOCK_N=block, BLOCK_D=wide, FAST=fast,
    )  # fmt: skip
    return errors.view(N, G, n)
