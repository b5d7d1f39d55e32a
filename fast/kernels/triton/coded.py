"""Quantise and pack in one pass, and the outliers of groups of channels."""

import triton
import triton.language as tl

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
