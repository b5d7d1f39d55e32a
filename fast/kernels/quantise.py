"""Quantising in one pass, and what outliers say about how much it loses.

Bytes of `quantise`, for vectors of d channels of e bytes: read d·e, written d·bits/8 and 4 per
group. Outliers are sought in PyTorch: DesireKV asks for them once in many tokens.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from kvlab.fast.engine import quantization
from kvlab.fast.engine.codes import Coded
from kvlab.fast.engine.quantization import Groups
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.common import blocks, kernel, on_its_device, tl, triton, tuned


def quantise(x: Float[Tensor, "*rows length"], bits: int, group: int) -> Coded:
    """Quantise and pack vectors along their last axis: see `kvlab.fast.engine.quantization`.

    Triton takes widths and groups that fill bytes and lie within a power of two; others take
    PyTorch: 3 bits, and a last group that is shorter.
    """
    fills_bytes = bits in (2, 4, 8) and group * bits % 8 == 0
    whole = group & (group - 1) == 0 and x.shape[-1] % group == 0
    if uses_triton(x, doubles=True) and fills_bytes and whole:
        return _quantise_in_triton(x, bits, group)
    return quantization.quantize(x, bits, group)


def outlier_scores(
    x: Float[Tensor, "*rows length"], group: int, over: Literal["outliers", "block"] = "outliers"
) -> Float[Tensor, "*rows groups"]:
    """Mean distance of each group's outliers to its mean, 0 without outliers (DesireKV Eq. 6).

    An outlier lies more than 1.5 interquartile ranges outside the quartiles. The mean is over the
    outliers, or over the whole group so that their number counts. Computed in float64.
    """
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


# --- in Triton ------------------------------------------------------------------------------------


@tuned(
    blocks(4, 3, BLOCK=32),
    blocks(4, 3, BLOCK=16),
    blocks(4, 3, BLOCK=64),
    blocks(8, 3, BLOCK=64),
    key=["LENGTH", "GROUP", "BITS"],
)
@kernel
def quantise_groups(
    vectors, codes, scales, zeros, rows,
    LENGTH: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Quantise one group of channels of some vectors in float64, bit for bit as the reference does.

    Codes are (x − zero) / scale to the nearest, halves to even. Grid: (blocks of rows, GROUPS).
    """
    PER: tl.constexpr = 8 // BITS
    LARGEST: tl.constexpr = 2**BITS - 1
    row, group = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
    channel = tl.arange(0, GROUP)
    inside = (row < rows)[:, None] & (channel >= 0)[None, :]
    at = row[:, None] * LENGTH + group * GROUP + channel
    x = tl.load(vectors + at, mask=inside, other=0.0).to(tl.float64)
    poison = tl.sum(tl.where(x != x, x, 0.0), axis=1)
    x = tl.minimum(tl.maximum(x, -65504.0), 65504.0)
    low, high = tl.min(x, axis=1), tl.max(x, axis=1)
    scale = (tl.minimum((high - low) / LARGEST, 65504.0) + poison).to(tl.float16)
    zero = (low + poison).to(tl.float16)
    there = (scale > 0)[:, None]
    step = tl.where(there, scale.to(tl.float64)[:, None], 1.0)
    steps = tl.where(there, (x - zero.to(tl.float64)[:, None]) / step, 0.0)
    steps = tl.minimum(tl.maximum(steps, 0.0), LARGEST)
    code = ((steps + 6755399441055744.0) - 6755399441055744.0).to(tl.int32)
    code = tl.reshape(code, [BLOCK, GROUP // PER, PER])
    shift = tl.arange(0, PER) * BITS
    packed = tl.sum(code << shift[None, None, :], axis=2).to(tl.uint8)
    byte = tl.arange(0, GROUP // PER)
    to = row[:, None] * (LENGTH // PER) + group * (GROUP // PER) + byte
    tl.store(codes + to, packed, mask=(row < rows)[:, None] & (byte >= 0)[None, :])
    tl.store(scales + row * GROUPS + group, scale, mask=row < rows)
    tl.store(zeros + row * GROUPS + group, zero, mask=row < rows)


@on_its_device
def _quantise_in_triton(x: Tensor, bits: int, group: int) -> Coded:
    *leading, length = x.shape
    flat, groups = x.reshape(-1, length).contiguous(), length // group
    rows = flat.shape[0]
    codes = flat.new_empty((rows, length * bits // 8), dtype=torch.uint8)
    scales, zeros = (flat.new_empty((rows, groups), dtype=torch.float16) for _ in range(2))
    if rows:
        quantise_groups[lambda sizes: (triton.cdiv(rows, sizes["BLOCK"]), groups)](
            flat, codes, scales, zeros, rows,
            LENGTH=length, GROUP=group, GROUPS=groups, BITS=bits,
        )  # fmt: skip
    parts = tuple(x.view(*leading, x.shape[1]) for x in (codes, scales, zeros))
    return Coded(Groups(bits, group), parts, length)
