"""Keep sets by bisection.

No run-time type checker must wrap these functions: they call each other inside a kernel.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def ascending(scores):
    """Map float32 to int64 in the same order; both zeros are one, NaN lies above all."""
    bits = (scores + 0.0).to(tl.int32, bitcast=True)
    keys = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return tl.where(scores != scores, 0x7FFFFFFF, keys).to(tl.int64)


@triton.jit
@no_type_check
def keep_sets(
    scores, safe, positions, kept, keep,
    n, width, s_head, p_head, heads_of_one,
    SCORE_HEADS: tl.constexpr, BLOCK_N: tl.constexpr, SAFE: tl.constexpr,
):  # fmt: skip
    """Write the slots that stay, ascending, at the end of each head's row of ``keep``.

    The safe ones and the best candidates; of equal scores the later slot stays. The threshold is
    found bit by bit: the largest number that enough candidates reach. Grid: (heads,).
    """
    head = tl.program_id(0).to(tl.int64)
    sequence = head // heads_of_one
    score_row = (sequence if SCORE_HEADS == 1 else head) * s_head
    stays = tl.load(kept + sequence)
    secure = tl.full([], 0, tl.int32)
    for block in range(0, tl.cdiv(n, BLOCK_N)):
        slot = block * BLOCK_N + tl.arange(0, BLOCK_N)
        there = slot < n
        if SAFE:
            at = head * p_head + slot
            present = tl.load(positions + at, mask=there, other=-1) >= 0
            is_safe = present & (tl.load(safe + head * n + slot, mask=there, other=0) != 0)
            secure += tl.sum(is_safe.to(tl.int32), axis=0)
    wanted = stays - secure
    low = tl.full([], -2147483648, tl.int64)
    high = tl.full([], 2147483647, tl.int64)
    for _ in range(32):
        middle = (low + high + 1) >> 1
        reach = tl.full([], 0, tl.int32)
        for block in range(0, tl.cdiv(n, BLOCK_N)):
            slot = block * BLOCK_N + tl.arange(0, BLOCK_N)
            there = slot < n
            present = tl.load(positions + head * p_head + slot, mask=there, other=-1) >= 0
            if SAFE:
                marked = tl.load(safe + head * n + slot, mask=there, other=0) != 0
                present = present & (marked == 0)
            keys = ascending(tl.load(scores + score_row + slot, mask=there, other=0.0))
            reach += tl.sum((present & (keys >= middle)).to(tl.int32), axis=0)
        enough = reach >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    above = tl.full([], 0, tl.int32)
    equal = tl.full([], 0, tl.int32)
    for block in range(0, tl.cdiv(n, BLOCK_N)):
        slot = block * BLOCK_N + tl.arange(0, BLOCK_N)
        there = slot < n
        present = tl.load(positions + head * p_head + slot, mask=there, other=-1) >= 0
        if SAFE:
            marked = tl.load(safe + head * n + slot, mask=there, other=0) != 0
            present = present & (marked == 0)
        keys = ascending(tl.load(scores + score_row + slot, mask=there, other=0.0))
        above += tl.sum((present & (keys > low)).to(tl.int32), axis=0)
        equal += tl.sum((present & (keys == low)).to(tl.int32), axis=0)
    passed_over = equal - (wanted - above)
    place = (width - stays).to(tl.int32)
    seen_equal = tl.full([], 0, tl.int32)
    for block in range(0, tl.cdiv(n, BLOCK_N)):
        slot = block * BLOCK_N + tl.arange(0, BLOCK_N)
        there = slot < n
        present = tl.load(positions + head * p_head + slot, mask=there, other=-1) >= 0
        stay = present & False
        candidate = present
        if SAFE:
            marked = tl.load(safe + head * n + slot, mask=there, other=0) != 0
            stay = present & marked
            candidate = present & (marked == 0)
        keys = ascending(tl.load(scores + score_row + slot, mask=there, other=0.0))
        tie = (candidate & (keys == low)).to(tl.int32)
        number = seen_equal + tl.cumsum(tie, axis=0)
        stay = stay | (candidate & (keys > low)) | ((tie != 0) & (number > passed_over))
        ones = stay.to(tl.int32)
        to = place + tl.cumsum(ones, axis=0) - 1
        tl.store(keep + head * width + to, slot.to(tl.int64), mask=stay & (to < width))
        place += tl.sum(ones, axis=0)
        seen_equal += tl.sum(tie, axis=0)
