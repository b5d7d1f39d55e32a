"""Launches the kernels of `prefill`."""

# pyright: reportArgumentType=false
# Triton makes constexpr of plain numbers.

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from kvlab.fast.kernels.triton.parts import magnitude, split
from kvlab.fast.kernels.triton.prefill import attend_rows, column_sums
from kvlab.fast.kernels.triton.strides import on_its_device, per_head

ENTRIES = 512
"""Entries that a part of a row's log-sum-exp has at least, where there are so many."""
ROWS = 64
"""Rows that a program takes, when parts are counted."""


@dataclass(frozen=True)
class Rows:
    """A block of queries and the entries that it reads, as kernels take them."""

    queries: Tensor
    keys: Tensor
    rows_at: Tensor
    entries_at: Tensor
    gains: Tensor
    sizes: dict[str, Any]
    """Numbers and constants that all kernels take."""


def prepared(
    queries: Tensor,
    keys: Tensor,
    query_positions: Tensor,
    positions: Tensor,
    gains: Tensor | None,
    softcap: float | None,
) -> Rows:
    """Bring a block into the layout of the kernels."""
    N, G, rho, m, d = queries.shape
    rows = rho * m
    flat_queries = queries.to(keys.dtype).reshape(N * G, rows, d).contiguous()
    flat_keys, entries_at = per_head(keys), per_head(positions)
    rows_at = query_positions.contiguous()
    sizes = {
        "m": m,
        "n": keys.shape[2],
        "rows": rows,
        "tall": magnitude(rows),
        "magnitude": magnitude(keys.shape[2]),
        "scale": d**-0.5,
        "softcap": softcap or 0.0,
        "q_head": flat_queries.stride(0),
        "q_row": flat_queries.stride(1),
        "k_head": flat_keys.stride(0),
        "k_row": flat_keys.stride(1),
        "e_head": entries_at.stride(0),
        "heads_of_one": G,
        "D": d,
        "BLOCK_D": max(16, magnitude(d)),
        "SOFTCAP": softcap is not None,
        "GAIN": gains is not None,
        "WIDE": keys.dtype == torch.float32
        or (keys.dtype == torch.bfloat16 and keys.device.type == "cpu"),
    }
    row_gains = rows_at if gains is None else gains.to(torch.float32).contiguous()
    return Rows(flat_queries, flat_keys, rows_at, entries_at, row_gains, sizes)


@on_its_device
def attend_block_triton(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_positions: Tensor,
    positions: Tensor,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Do what `attend_block` says, in Triton."""
    N, G, rho, m, d = queries.shape
    block = prepared(queries, keys, query_positions, positions, None, softcap)
    flat_values = per_head(values)
    heads, rows = N * G, rho * m
    lse = torch.empty((heads, rows), dtype=torch.float32, device=keys.device)
    output = torch.empty((heads, rows, d), dtype=keys.dtype, device=keys.device)
    attend_rows[lambda sizes: (heads, triton.cdiv(rows, sizes["BLOCK_M"]), 1)](
        block.queries, block.keys, flat_values, block.rows_at, block.entries_at, block.gains,
        lse, output, parts=1, v_head=flat_values.stride(0), v_row=flat_values.stride(1),
        WITH_VALUES=True, **block.sizes,
    )  # fmt: skip
    return output.view(queries.shape), lse.view(N, G, rho, m)


def log_sums(block: Rows) -> Tensor:
    """Return every row's log-sum-exp ``[heads, rows]``; its entries are shared out over parts."""
    heads, rows, n = block.queries.shape[0], block.sizes["rows"], block.sizes["n"]
    programs = heads * triton.cdiv(rows, ROWS)
    parts = split(n, ENTRIES, programs, block.keys.device)
    lse = torch.empty((heads, parts, rows), dtype=torch.float32, device=block.keys.device)
    attend_rows[lambda sizes: (heads, triton.cdiv(rows, sizes["BLOCK_M"]), parts)](
        block.queries, block.keys, block.keys, block.rows_at, block.entries_at, block.gains,
        lse, lse, parts=parts, v_head=0, v_row=0, WITH_VALUES=False, **block.sizes,
    )  # fmt: skip
    return torch.logsumexp(lse, dim=1)


@on_its_device
def received_attention_triton(
    queries: Tensor,
    keys: Tensor,
    query_positions: Tensor,
    positions: Tensor,
    gains: Tensor | None,
    softcap: float | None,
    lse: Tensor | None,
) -> Tensor:
    """Do what `received_attention` says, in Triton."""
    N, G, rho, m, _ = queries.shape
    heads, n = N * G, keys.shape[2]
    block = prepared(queries, keys, query_positions, positions, gains, softcap)
    known = log_sums(block) if lse is None else lse.reshape(heads, rho * m).contiguous()
    sums = torch.empty((heads, n), dtype=torch.float32, device=keys.device)
    column_sums[lambda sizes: (heads, triton.cdiv(n, sizes["BLOCK_N"]))](
        block.queries, block.keys, block.rows_at, block.entries_at, block.gains, known, sums,
        RHO=rho, **block.sizes,
    )  # fmt: skip
    return sums.view(N, G, n)
