"""Launches the kernels of `coded`."""

# pyright: reportArgumentType=false
# Triton makes constexpr of plain numbers.

from collections.abc import Callable, Sequence

import torch
import triton
from torch import Tensor

from kvlab.fast.kernels.coded_table import CodedTable
from kvlab.fast.kernels.triton.coded import (
    logits_of_table,
    outliers_of_groups,
    quantise_groups,
    values_of_table,
)
from kvlab.fast.kernels.triton.parts import magnitude
from kvlab.fast.kernels.triton.strides import on_its_device
from kvlab.fast.quantization import Quantized

BLOCK_N = 64


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
        codes.view(*leading, -1),
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


@on_its_device
def attend_to_tables_triton(
    queries: Tensor,
    keys: Sequence[CodedTable],
    values: Sequence[CodedTable],
    entries: int,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Do what `attend_to_tables` says, in Triton: a launch per table, and a softmax between."""
    N, G, rho, _, d = queries.shape
    heads, device = N * G, queries.device
    flat = queries.reshape(heads, rho, d).contiguous()
    raw = torch.full((heads, rho, entries), -torch.inf, dtype=torch.float32, device=device)
    sizes = {
        "RHO": rho,
        "D": d,
        "BLOCK_RHO": max(16, triton.next_power_of_2(rho)),
        "BLOCK_D": max(16, triton.next_power_of_2(d)),
    }
    for table in keys:
        count = table.slots.shape[2]
        if not count:
            continue
        vectors, scales, zeros, group = parts_of(table)
        logits_of_table[blocks_of(heads, count)](
            flat, vectors, scales, zeros, table.slots.contiguous(), raw,
            entries, count, magnitude(count), d**-0.5, softcap or 0.0,
            vectors[0, 0].numel(), vectors.shape[-1], scales[0, 0].numel(),
            BITS=table.bits, GROUP=group, SOFTCAP=softcap is not None,
            BY_CHANNEL=table.by_channel, **sizes,
        )  # fmt: skip
    weights = torch.softmax(raw, dim=-1)
    output = torch.zeros((heads, rho, d), dtype=torch.float32, device=device)
    for table in values:
        count = table.slots.shape[2]
        if not count:
            continue
        vectors, scales, zeros, group = parts_of(table)
        blocks = -(-count // BLOCK_N)
        part = torch.empty((heads, blocks, rho, d), dtype=torch.float32, device=device)
        values_of_table[(heads, blocks)](
            weights, vectors, scales, zeros, table.slots.contiguous(), part,
            entries, count, magnitude(count),
            vectors[0, 0].numel(), vectors.shape[-1], scales[0, 0].numel(),
            BITS=table.bits, GROUP=group, BLOCK_N=BLOCK_N, BY_CHANNEL=table.by_channel, **sizes,
        )  # fmt: skip
        output += part.sum(dim=1)
    shape = N, G, rho, 1
    return output.to(queries.dtype).view(*shape, d), weights.view(*shape, entries)


def blocks_of(heads: int, count: int) -> Callable[[dict[str, int]], tuple[int, int]]:
    """Return the grid (heads, blocks of rows) for any size of a block."""
    return lambda sizes: (heads, -(-count // sizes["BLOCK_N"]))


def parts_of(table: CodedTable) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return the numbers or codes of a table, scales, zero points, and the size of a group."""
    if isinstance(table.vectors, Quantized):
        coded = table.vectors
        return (
            coded.codes.contiguous(),
            coded.scale.contiguous(),
            coded.zero.contiguous(),
            coded.group,
        )
    vectors = table.vectors.contiguous()
    return vectors, vectors, vectors, vectors.shape[-1]
