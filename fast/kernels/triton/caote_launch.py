"""Launches the kernels of `caote`."""

# pyright: reportArgumentType=false
# Triton makes constexpr of plain numbers.

import torch
import triton
from torch import Tensor

from kvlab.fast.kernels.caote import SAFE_MASS, SAFE_MASS_OF_ROUNDED
from kvlab.fast.kernels.triton.caote import errors_of_entries, find_heaviest, weighted_sums
from kvlab.fast.kernels.triton.parts import magnitude, split
from kvlab.fast.kernels.triton.strides import on_its_device, per_head

ENTRIES = 64
"""Entries that a part has at least, where there are so many."""


@on_its_device
def eviction_errors_triton(h: Tensor, values: Tensor, fast: bool, output: Tensor | None) -> Tensor:
    """Do what `eviction_errors` says, in Triton."""
    N, G, rows, n = h.shape
    d, heads = values.shape[3], N * G
    h = h.to(torch.float32).contiguous()
    flat = per_head(values)
    if fast:
        safe_mass = 0.0
        points = sums_of_values(h.new_full((1, 1, n), 1 / n).expand(heads, 1, n), flat)
        output = h.new_zeros(heads, rows, d)
    else:
        points = sums_of_values(h.flatten(0, 1), flat) if output is None else output
        safe_mass = SAFE_MASS if points.dtype.itemsize >= 4 else SAFE_MASS_OF_ROUNDED
        output = points = points.to(torch.float32).contiguous()
    others = torch.empty((heads, rows, d), dtype=torch.float32, device=h.device)
    heaviest = torch.empty((heads, rows), dtype=torch.int32, device=h.device)
    mass = torch.empty((heads, rows), dtype=torch.float32, device=h.device)
    errors = torch.empty((heads, n), dtype=torch.float32, device=h.device)
    wide = triton.next_power_of_2(d)
    find_heaviest[(heads, rows)](
        h, flat, output, others, heaviest, mass,
        n, flat.stride(0), flat.stride(1), safe_mass,
        ROWS=rows, D=d, BLOCK_H=min(4096, magnitude(n)), BLOCK_N=ENTRIES, BLOCK_D=wide,
    )  # fmt: skip
    errors_of_entries[lambda sizes: (heads, triton.cdiv(n, sizes["BLOCK_N"]))](
        h, flat, points, others, heaviest, mass, errors,
        n, magnitude(n), flat.stride(0), flat.stride(1), torch.finfo(torch.float32).max,
        ROWS=rows, D=d, BLOCK_D=wide, FAST=fast,
    )  # fmt: skip
    return errors.view(N, G, n)


def sums_of_values(weights: Tensor, values: Tensor) -> Tensor:
    """Return Σ w·v for every row ``[heads, rows, d]``, in float32, without a copy of the values."""
    heads, rows, n = weights.shape
    d = values.shape[2]
    parts = split(n, ENTRIES, heads, values.device)
    sums = torch.empty((heads, parts, rows, d), dtype=torch.float32, device=values.device)
    weighted_sums[(heads, parts)](
        weights, values, sums,
        n, magnitude(n), weights.stride(0), weights.stride(1), values.stride(0), values.stride(1),
        ROWS=rows, D=d, PARTS=parts, BLOCK_ROWS=max(16, triton.next_power_of_2(rows)),
        BLOCK_D=max(16, triton.next_power_of_2(d)),
    )  # fmt: skip
    return sums.sum(dim=1)
