"""Launches the kernels of `prefill`."""

# pyright: reportArgumentType=false
# Triton makes constexpr of plain numbers.

import torch
import triton
from torch import Tensor

from kvlab.fast.kernels.triton.parts import magnitude
from kvlab.fast.kernels.triton.prefill import column_sums, log_sums
from kvlab.fast.kernels.triton.strides import on_its_device, per_head


@on_its_device
def received_attention_triton(
    queries: Tensor,
    keys: Tensor,
    query_positions: Tensor,
    positions: Tensor,
    gains: Tensor | None,
    softcap: float | None,
) -> Tensor:
    """Do what `received_attention` says, in Triton."""
    N, G, rho, m, d = queries.shape
    heads, n = N * G, keys.shape[2]
    if queries.dtype != keys.dtype:
        queries = queries.to(keys.dtype)
    flat_queries = queries.reshape(heads, rho, m, d).contiguous()
    flat_keys, entries_at = per_head(keys), per_head(positions)
    rows_at = query_positions.contiguous()
    row_gains = rows_at if gains is None else gains.to(torch.float32).contiguous()
    lse = torch.empty((heads, rho, m), dtype=torch.float32, device=keys.device)
    sums = torch.empty((heads, n), dtype=torch.float32, device=keys.device)
    wide = keys.dtype == torch.float32 or keys.device.type == "cpu"
    q_head, q_group, q_row, _ = flat_queries.stride()
    strides = q_head, q_group, q_row, flat_keys.stride(0), flat_keys.stride(1)
    shared = {
        "D": d,
        "BLOCK_D": max(16, triton.next_power_of_2(d)),
        "SOFTCAP": softcap is not None,
        "GAIN": gains is not None,
        "WIDE": wide,
    }
    inputs = flat_queries, flat_keys, rows_at, entries_at, row_gains
    sizes = m, n, magnitude(n), d**-0.5, softcap or 0.0, *strides, entries_at.stride(0), G
    log_sums[lambda blocks: (heads, rho, triton.cdiv(m, blocks["BLOCK_M"]))](
        *inputs, lse, *sizes, **shared
    )
    column_sums[lambda blocks: (heads, triton.cdiv(n, blocks["BLOCK_N"]))](
        *inputs, lse, sums, *sizes, RHO=rho, **shared
    )
    return sums.view(N, G, n)
