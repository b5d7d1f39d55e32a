"""Launches the kernels of `decode`."""

# pyright: reportArgumentType=false
# Triton makes constexpr of plain numbers.

import torch
import triton
from torch import Tensor

from kvlab.fast.attention import compute_dtype
from kvlab.fast.kernels.tracking import Reduction, Tracking
from kvlab.fast.kernels.triton.decode import attend_to_a_part, combine
from kvlab.fast.kernels.triton.parts import magnitude, split
from kvlab.fast.kernels.triton.strides import on_its_device, per_head

ENTRIES = 64
"""Entries that a part has at least, where there are so many."""
TOGETHER = 512
"""Entries whose probabilities a program of the second kernel finishes."""


@on_its_device
def decode_attention_triton(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor | None,
    softcap: float | None,
    reduce: Reduction,
    tracking: Tracking | None,
) -> tuple[Tensor, Tensor]:
    """Do what `decode_attention` says, in Triton."""
    N, G, rho, m, d = queries.shape
    n = keys.shape[2]
    if m != 1:
        raise ValueError(f"queries of {m} tokens: one at a time is decoded")
    if compute_dtype(keys.dtype) != torch.float32:
        raise ValueError(f"keys of {keys.dtype}: Triton kernels compute in float32")
    heads, device, scores = N * G, queries.device, reduce != "skip"
    shape = (N, G, rho, 1, n) if reduce == "none" else (N, G, n)
    if not n:
        empty = torch.empty(shape if scores else 0, dtype=torch.float32, device=device)
        return torch.zeros_like(queries), empty
    flat_queries = queries.reshape(heads, rho, d).contiguous()
    keys, values = (per_head(x) for x in (keys, values))
    wide = keys.dtype == torch.float32 or (keys.dtype == torch.bfloat16 and device.type == "cpu")
    parts = split(n, ENTRIES, heads, device)
    f32 = {"dtype": torch.float32, "device": device}
    raw = torch.empty((heads, rho, n) if scores else 0, **f32)
    largest, total = (torch.empty((heads, parts, rho), **f32) for _ in range(2))
    part_output = torch.empty((heads, parts, rho, d), **f32)
    output = torch.empty((heads, rho, d), dtype=queries.dtype, device=device)
    sizes = {
        "RHO": rho,
        "D": d,
        "PARTS": parts,
        "BLOCK_RHO": max(16, triton.next_power_of_2(rho)),
        "BLOCK_D": max(16, triton.next_power_of_2(d)),
    }
    flat_positions = None if positions is None else per_head(positions)
    attend_to_a_part[(heads, parts)](
        flat_queries, keys, values, flat_positions, raw, largest, total, part_output,
        n, magnitude(n), d**-0.5, softcap or 0.0,
        flat_queries.stride(0), flat_queries.stride(1),
        keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
        0 if flat_positions is None else flat_positions.stride(0),
        SOFTCAP=softcap is not None, RAGGED=positions is not None,
        WIDE=wide, SCORES=scores, **sizes,
    )  # fmt: skip
    received = raw if reduce in ("none", "skip") else torch.empty((heads, n), **f32)
    elapsed = interval = received
    threshold = 0.0
    if tracking is not None:
        elapsed, interval = per_head(tracking.elapsed), per_head(tracking.interval)
        if elapsed.stride() != interval.stride():
            raise ValueError("tracking needs counters that lie alike in memory")
        threshold = tracking.threshold
    combine[(heads, triton.cdiv(n, TOGETHER) if scores else 1)](
        raw, largest, total, part_output, output, received, elapsed, interval,
        n, threshold, elapsed.stride(0),
        BLOCK_N=TOGETHER, BLOCK_PARTS=triton.next_power_of_2(parts),
        REDUCE=reduce, TRACK=tracking is not None, **sizes,
    )  # fmt: skip
    output = output.view(N, G, rho, 1, d)
    if not scores:
        return output, raw
    return output, received.view(shape)
