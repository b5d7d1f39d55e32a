"""Quantise and pack in one pass, and attention that reads codes where they lie."""

from typing import no_type_check

import triton
import triton.language as tl

from kvlab.fast.kernels.triton.blocks import read_vectors, squeezed
from kvlab.fast.kernels.triton.tuning import blocks, tuned


@tuned(
    blocks(4, 3, BLOCK=32),
    blocks(4, 3, BLOCK=16),
    blocks(4, 3, BLOCK=64),
    blocks(8, 3, BLOCK=64),
    key=["LENGTH", "GROUP", "BITS"],
)
@triton.jit
def quantise_groups(
    vectors, codes, scales, zeros, rows,
    LENGTH: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Quantise one group of channels of some vectors, bit for bit as the reference does.

    Computed in float64, as there; halves round to even. Grid: (blocks of rows, GROUPS).
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
    low, high = tl.min(x, axis=1) + poison, tl.max(x, axis=1) + poison
    scale = tl.minimum((high - low) / LARGEST, 65504.0).to(tl.float16)
    zero = low.to(tl.float16)
    step = scale.to(tl.float64)
    whole = tl.where(step > 0, step, 1.0)
    steps = (x - zero.to(tl.float64)[:, None]) / whole[:, None]
    steps = tl.minimum(tl.maximum(tl.where((step > 0)[:, None], steps, 0.0), 0.0), LARGEST)
    even = (steps + 6755399441055744.0) - 6755399441055744.0
    code = tl.reshape(even.to(tl.int32), [BLOCK, GROUP // PER, PER])
    shift = tl.arange(0, PER) * BITS
    packed = tl.sum(code << shift[None, None, :], axis=2).to(tl.uint8)
    byte = tl.arange(0, GROUP // PER)
    to = row[:, None] * (LENGTH // PER) + group * (GROUP // PER) + byte
    tl.store(codes + to, packed, mask=(row < rows)[:, None] & (byte >= 0)[None, :])
    tl.store(scales + row * GROUPS + group, scale, mask=row < rows)
    tl.store(zeros + row * GROUPS + group, zero, mask=row < rows)


@triton.jit
def outliers_of_groups(
    vectors, scores, rows,
    LENGTH: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, OF_OUTLIERS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Mean distance of a group's outliers to its mean. Grid: (blocks of rows, GROUPS)."""
    row, group = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
    channel = tl.arange(0, GROUP)
    inside = (row < rows)[:, None] & (channel >= 0)[None, :]
    at = row[:, None] * LENGTH + group * GROUP + channel
    narrow = tl.load(vectors + at, mask=inside, other=0.0).to(tl.float32)
    ordered = tl.sort(narrow, dim=1).to(tl.float64)
    x = narrow.to(tl.float64)
    # the quartile at q lies between two of the ordered values, q·(GROUP − 1) counted from 0
    below: tl.constexpr = (GROUP - 1) // 4
    part: tl.constexpr = (GROUP - 1) % 4 * 0.25
    above: tl.constexpr = 3 * (GROUP - 1) // 4
    share: tl.constexpr = 3 * (GROUP - 1) % 4 * 0.25
    place = channel[None, :]
    low = tl.sum(tl.where(place == below, ordered, 0.0), axis=1)
    first = low + part * (tl.sum(tl.where(place == below + 1, ordered, 0.0), axis=1) - low)
    if part == 0:
        first = low
    high = tl.sum(tl.where(place == above, ordered, 0.0), axis=1)
    third = high + share * (tl.sum(tl.where(place == above + 1, ordered, 0.0), axis=1) - high)
    if share == 0:
        third = high
    reach = 1.5 * (third - first)
    outlier = (x < (first - reach)[:, None]) | (x > (third + reach)[:, None])
    mean = tl.sum(x, axis=1) / GROUP
    distance = tl.where(outlier, tl.abs(x - mean[:, None]), 0.0)
    total = tl.sum(distance, axis=1)
    count = tl.full([BLOCK], GROUP, tl.float64)
    if OF_OUTLIERS:
        count = tl.maximum(tl.sum(outlier.to(tl.int32), axis=1), 1).to(tl.float64)
    tl.store(scores + row * GROUPS + group, total / count, mask=row < rows)


@tuned(
    blocks(4, 3, BLOCK_N=64),
    blocks(4, 3, BLOCK_N=128),
    blocks(8, 3, BLOCK_N=128),
    key=["magnitude", "RHO", "D", "BITS", "GROUP"],
)
@triton.jit
@no_type_check
def logits_of_table(
    queries, keys, scales, zeros, slots, raw,
    n, count, magnitude, scale, softcap, k_head, k_row, s_head,
    RHO: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_RHO: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    SOFTCAP: tl.constexpr, BY_CHANNEL: tl.constexpr,
):  # fmt: skip
    """Logits of a head's queries over the keys of one table, written to the slots of the entries.

    BITS 16 are plain numbers, fewer are codes of BITS bits in groups of GROUP channels, or rows
    BY_CHANNEL. Grid: (heads, blocks of the table's rows).
    """
    head, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, channel = tl.arange(0, BLOCK_RHO), tl.arange(0, BLOCK_D)
    real = (row < RHO)[:, None] & (channel < D)[None, :]
    q = tl.load(queries + (head * RHO + row[:, None]) * D + channel, mask=real, other=0.0)
    line = block * BLOCK_N + tl.arange(0, BLOCK_N)
    there = line < count
    inside = there[:, None] & (channel < D)[None, :]
    k = read_vectors(
        keys, scales, zeros, head, line, inside, channel, k_head, k_row, s_head,
        D, BITS, GROUP, BY_CHANNEL,
    )  # fmt: skip
    logits = tl.dot(q.to(tl.float32), tl.trans(k), input_precision="tf32x3") * scale
    if SOFTCAP:
        logits = squeezed(logits, softcap)
    slot = tl.load(slots + head * count + line, mask=there, other=-1)
    to = raw + (head * RHO + row[:, None]) * n + slot[None, :]
    tl.store(to, logits, mask=(row < RHO)[:, None] & (slot >= 0)[None, :])


@tuned(blocks(4, 3), blocks(4, 4), blocks(8, 3), key=["magnitude", "RHO", "D", "BITS", "GROUP"])
@triton.jit
@no_type_check
def values_of_table(
    weights, values, scales, zeros, slots, output,
    n, count, magnitude, v_head, v_row, s_head,
    RHO: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_RHO: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
):  # fmt: skip
    """Weighted sum of some values of one table; a part of the output. Grid: (heads, blocks)."""
    head, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, channel = tl.arange(0, BLOCK_RHO), tl.arange(0, BLOCK_D)
    line = block * BLOCK_N + tl.arange(0, BLOCK_N)
    there = line < count
    slot = tl.load(slots + head * count + line, mask=there, other=-1)
    at = weights + (head * RHO + row[:, None]) * n + slot[None, :]
    p = tl.load(at, mask=(row < RHO)[:, None] & (slot >= 0)[None, :], other=0.0)
    inside = there[:, None] & (channel < D)[None, :]
    v = read_vectors(
        values, scales, zeros, head, line, inside, channel, v_head, v_row, s_head,
        D, BITS, GROUP, BY_CHANNEL,
    )  # fmt: skip
    part = tl.dot(p, v, input_precision="tf32x3")
    real = (row < RHO)[:, None] & (channel < D)[None, :]
    to = (head * tl.num_programs(1) + block) * RHO + row
    tl.store(output + to[:, None] * D + channel, part, mask=real)
