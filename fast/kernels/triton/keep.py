"""Keep sets by radix selection: the threshold is found eight bits at a time.

No run-time type checker must wrap these functions: they call each other inside a kernel.
"""

# pyright: reportArgumentType=false
# Triton makes constexpr of plain numbers.

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvlab.fast.kernels.triton.common import on_its_device, per_head


@triton.jit
@no_type_check
def ascending(scores):
    """Map float32 to 32 bits of int64 in the same order; both zeros are equal, NaN is largest."""
    bits = (scores + 0.0).to(tl.int32, bitcast=True)
    keys = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return tl.where(scores != scores, 0x7FFFFFFF, keys).to(tl.int64) + 2147483648


@triton.jit
@no_type_check
def read_block(
    scores, safe, positions, score_row, place_row, safe_row, block, n,
    BLOCK_N: tl.constexpr, SAFE: tl.constexpr,
):  # fmt: skip
    """Return a block's slots, sortable scores, marks of candidates, and marks of safe slots."""
    slot = block * BLOCK_N + tl.arange(0, BLOCK_N)
    there = slot < n
    present = tl.load(positions + place_row + slot, mask=there, other=-1) >= 0
    keys = ascending(tl.load(scores + score_row + slot, mask=there, other=0.0))
    marked = present & False
    if SAFE:
        marked = present & (tl.load(safe + safe_row + slot, mask=there, other=0) != 0)
    return slot, keys, present & (marked == 0), marked


@triton.jit
@no_type_check
def keep_sets(
    scores, safe, positions, keep,
    n, width, s_head, p_head, heads_of_one,
    SCORE_HEADS: tl.constexpr, BLOCK_N: tl.constexpr, SAFE: tl.constexpr,
):  # fmt: skip
    """Write the ``width`` slots of each head that stay, ascending.

    Safe slots and the best candidates stay; of equal scores the later slot stays. The threshold is
    the largest number that enough candidates reach: four passes count the candidates that share
    its upper bits, by the next eight. Grid: (heads,).
    """
    head = tl.program_id(0).to(tl.int64)
    score_row = ((head // heads_of_one) if SCORE_HEADS == 1 else head) * s_head
    place_row, safe_row = head * p_head, head * n
    blocks = tl.cdiv(n, BLOCK_N)
    secure = tl.full([], 0, tl.int32)
    for block in range(0, blocks):
        _slot, _keys, _candidate, marked = read_block(
            scores, safe, positions, score_row, place_row, safe_row, block, n, BLOCK_N, SAFE
        )
        secure += tl.sum(marked.to(tl.int32), axis=0)
    digits = tl.arange(0, 512)
    wanted = width - secure
    low = tl.full([], 0, tl.int64)
    equal = tl.full([], 0, tl.int32)
    for turn in tl.static_range(4):
        counts = tl.zeros([512], tl.int32)
        for block in range(0, blocks):
            _slot, keys, candidate, _marked = read_block(
                scores, safe, positions, score_row, place_row, safe_row, block, n, BLOCK_N, SAFE
            )
            upper = keys >> (24 - 8 * turn)
            digit = tl.where(candidate & ((upper >> 8) == low), upper & 255, 256).to(tl.int32)
            counts += tl.histogram(digit, 512)
        counts = tl.where(digits < 256, counts, 0)
        reach = tl.cumsum(counts, axis=0, reverse=True)
        found = tl.max(tl.where((digits < 256) & (reach >= wanted), digits, 0), axis=0)
        equal = tl.sum(tl.where(digits == found, counts, 0), axis=0)
        wanted -= tl.sum(tl.where(digits > found, counts, 0), axis=0)
        low = low * 256 + found
    passed_over = equal - wanted
    place = tl.full([], 0, tl.int32)
    seen_equal = tl.full([], 0, tl.int32)
    for block in range(0, blocks):
        slot, keys, candidate, marked = read_block(
            scores, safe, positions, score_row, place_row, safe_row, block, n, BLOCK_N, SAFE
        )
        tie = (candidate & (keys == low)).to(tl.int32)
        number = seen_equal + tl.cumsum(tie, axis=0)
        stay = marked | (candidate & (keys > low)) | ((tie != 0) & (number > passed_over))
        ones = stay.to(tl.int32)
        to = place + tl.cumsum(ones, axis=0) - 1
        tl.store(keep + head * width + to, slot.to(tl.int64), mask=stay & (to < width))
        place += tl.sum(ones, axis=0)
        seen_equal += tl.sum(tie, axis=0)


# --- launching ------------------------------------------------------------------------------------


@on_its_device
def keep_slots_triton(scores: Tensor, safe: Tensor | None, positions: Tensor, width: int) -> Tensor:
    """Do what `keep_slots` says, in Triton; slots are ascending, and every head keeps ``width``."""
    N, G, n = positions.shape
    scores = scores.to(torch.float32).contiguous()
    flat = per_head(positions)
    marks = flat if safe is None else safe.contiguous().view(torch.uint8)
    keep = torch.empty((N, G, width), dtype=torch.int64, device=positions.device)
    block = min(1024, max(16, triton.next_power_of_2(n)))
    keep_sets[(N * G,)](
        scores, marks, flat, keep,
        n, width, n, flat.stride(0), G,
        SCORE_HEADS=scores.shape[1], BLOCK_N=block, SAFE=safe is not None,
    )  # fmt: skip
    return keep
