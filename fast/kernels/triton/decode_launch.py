"""Launches the kernels of `decode`."""

# pyright: reportArgumentType=false
# Triton makes constexpr of plain numbers.

import math

import torch
import triton
from torch import Tensor

from kvlab.fast.attention import compute_dtype
from kvlab.fast.kernels.tracking import Reduction, Tracking
from kvlab.fast.kernels.triton.decode import attend_to_a_part, combine
from kvlab.fast.kernels.triton.strides import on_its_device, per_head

MOST_PARTS = 64
WAVES = 2
"""Programs per multiprocessor that the first kernel aims at."""


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
    heads, device = N * G, queries.device
    flat_queries = queries.reshape(heads, rho, d).contiguous()
    keys, values = (per_head(x) for x in (keys, values))
    wide = keys.dtype == torch.float32 or device.type == "cpu"
    block = block_of_entries(d, wide)
    parts, rounds = split(n, block, heads, device)
    f32 = {"dtype": torch.float32, "device": device}
    raw = torch.empty((heads, rho, n), **f32)
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
        n, rounds, d**-0.5, softcap or 0.0,
        flat_queries.stride(0), flat_queries.stride(1),
        keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
        0 if flat_positions is None else flat_positions.stride(0),
        BLOCK_N=block,
        SOFTCAP=softcap is not None, RAGGED=positions is not None,
        WIDE=wide, **sizes,
    )  # fmt: skip
    received = raw if reduce == "none" else torch.empty((heads, n), **f32)
    elapsed = interval = received
    threshold = 0.0
    if tracking is not None:
        elapsed, interval = per_head(tracking.elapsed), per_head(tracking.interval)
        threshold = tracking.threshold
    wide = 512
    combine[(heads, triton.cdiv(n, wide))](
        raw, largest, total, part_output, output, received, elapsed, interval,
        n, threshold, elapsed.stride(0),
        BLOCK_N=wide, BLOCK_PARTS=triton.next_power_of_2(parts),
        REDUCE=reduce, TRACK=tracking is not None, **sizes,
    )  # fmt: skip
    output = output.view(N, G, rho, 1, d)
    return output, received.view((N, G, rho, 1, n) if reduce == "none" else (N, G, n))


def block_of_entries(d: int, wide: bool) -> int:
    """Return how many entries a program holds at once, so that they fit into shared memory."""
    if d > 128:
        return 16 if wide else 32
    return 32 if wide else (128 if d <= 64 else 64)


def split(n: int, block: int, heads: int, device: torch.device) -> tuple[int, int]:
    """Share n entries out: into how many parts, of how many blocks each."""
    blocks = max(1, -(-n // block))
    processors = 132
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    wanted = max(1, min(MOST_PARTS, blocks, math.ceil(WAVES * processors / heads)))
    rounds = -(-blocks // wanted)
    parts = 1 << (-(-blocks // rounds) - 1).bit_length()  # few numbers: each is compiled anew
    return parts, rounds
