"""Survivors moved together in place.

No run-time type checker must wrap these functions: they call each other inside a kernel.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def move_column(
    buffer, keep, head, column, first_word,
    heads, capacity, width,
    WORDS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Move the survivors of one column of a head to its front, some words of each row.

    Row i takes row keep[i] ≥ i: in ascending order nothing is overwritten before it is read.
    """
    word = first_word + tl.arange(0, BLOCK_W)
    base = (column * heads + head) * capacity
    for block in range(0, tl.cdiv(width, BLOCK_N)):
        to = block * BLOCK_N + tl.arange(0, BLOCK_N)
        here = to < width
        source = tl.load(keep + head * width + to, mask=here, other=0)
        real = here[:, None] & (word < WORDS)[None, :]
        rows = tl.load(buffer + (base + source[:, None]) * WORDS + word, mask=real, other=0)
        tl.debug_barrier()  # other threads' rows have been read before any is written
        tl.store(buffer + (base + to[:, None]) * WORDS + word, rows, mask=real)
        tl.debug_barrier()


@triton.jit
@no_type_check
def move_survivors(
    wide, narrow, other, keep, heads, capacity, width,
    WIDE_SLICES: tl.constexpr, NARROW: tl.constexpr, WORDS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Move all columns of all heads: keys and values, int32 state, float32 state.

    Everything is moved as 32-bit words. Grid: (heads, slices); a slice is up to BLOCK_W words of
    every row of keys or values, or one column of state.
    """
    head, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    PER_COLUMN: tl.constexpr = (WORDS + BLOCK_W - 1) // BLOCK_W
    if piece < WIDE_SLICES:
        move_column(
            wide, keep, head, piece // PER_COLUMN, (piece % PER_COLUMN) * BLOCK_W,
            heads, capacity, width, WORDS, BLOCK_N, BLOCK_W,
        )  # fmt: skip
    elif piece < WIDE_SLICES + NARROW:
        move_column(
            narrow, keep, head, piece - WIDE_SLICES, 0,
            heads, capacity, width, 1, BLOCK_N, 1,
        )  # fmt: skip
    else:
        move_column(
            other, keep, head, piece - WIDE_SLICES - NARROW, 0,
            heads, capacity, width, 1, BLOCK_N, 1,
        )  # fmt: skip
