"""Moving the survivors together.

Bytes: every survivor is read and written once, in all columns.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.common import kernel, magnitude, on_its_device, tl


def move_survivors(
    buffers: Mapping[Any, Tensor], slots: Int[Tensor, "N G kept"], ascending: bool
) -> None:
    """Move rows to the front of their buffers, in place: row i becomes what row ``slots[i]`` was.

    Buffers have the layout ``[columns, N, G, capacity, ...]``. ``ascending``: slots ascend, and
    none lies before its new place.
    """
    first = next(iter(buffers.values()))
    if ascending and uses_triton(first) and move_as_words(buffers):
        _move_in_triton(list(buffers.values()), slots)
        return
    N, G, kept = slots.shape
    for buffer in buffers.values():
        capacity = buffer.shape[3]
        heads = torch.arange(N * G, device=slots.device).view(N, G, 1) * capacity
        flat = buffer.flatten(1, 3)
        chosen = flat.index_select(1, (heads + slots).flatten())
        buffer.narrow(3, 0, kept).copy_(chosen.view(*buffer.shape[:3], kept, *buffer.shape[4:]))


def move_as_words(buffers: Mapping[Any, Tensor]) -> bool:
    """Say whether Triton moves these: one buffer of vectors, and one of each 32-bit state."""
    wide = [x for x in buffers.values() if x.dim() > 4]
    state = [x.dtype for x in buffers.values() if x.dim() == 4]
    whole = all(x.shape[-1] * x.itemsize % 4 == 0 for x in wide)
    known = {torch.int32, torch.float32}
    return len(wide) <= 1 and whole and set(state) <= known and len(set(state)) == len(state)


# --- in Triton ------------------------------------------------------------------------------------


@kernel
def read_survivors(
    start, keep, first, width, word, WORDS: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Return words of the rows that are to become the rows from ``first`` on."""
    to = first + tl.arange(0, BLOCK_N)
    source = tl.load(keep + to, mask=to < width, other=0)
    real = (to < width)[:, None] & (word < WORDS)[None, :]
    return tl.load(start + source[:, None] * WORDS + word, mask=real, other=0)


@kernel
def write_survivors(
    rows, start, first, width, word, WORDS: tl.constexpr, BLOCK_N: tl.constexpr
):  # fmt: skip
    """Write words of the rows from ``first`` on, when all threads have read theirs."""
    to = first + tl.arange(0, BLOCK_N)
    real = (to < width)[:, None] & (word < WORDS)[None, :]
    tl.debug_barrier()
    tl.store(start + to[:, None].to(tl.int64) * WORDS + word, rows, mask=real)


@kernel
def move_column(
    buffer, keep, head, column, first_word,
    heads, capacity, width,
    WORDS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Move the survivors of one column of a head to its front, some words of each row.

    Row i takes row keep[i] ≥ i: in ascending order nothing is overwritten before it is read. While
    a block is written, the next is on its way: it lies behind all that is written.
    """
    word = first_word + tl.arange(0, BLOCK_W)
    start, keep = buffer + (column * heads + head) * capacity * WORDS, keep + head * width
    even = read_survivors(start, keep, 0, width, word, WORDS, BLOCK_N)
    for first in range(0, width, 2 * BLOCK_N):  # in turns: a copy would wait for what is read
        odd = read_survivors(start, keep, first + BLOCK_N, width, word, WORDS, BLOCK_N)
        write_survivors(even, start, first, width, word, WORDS, BLOCK_N)
        even = read_survivors(start, keep, first + 2 * BLOCK_N, width, word, WORDS, BLOCK_N)
        write_survivors(odd, start, first + BLOCK_N, width, word, WORDS, BLOCK_N)


@kernel
def move_columns(
    wide, narrow, other, keep, heads, capacity, width,
    WIDE_SLICES: tl.constexpr, NARROW: tl.constexpr, WORDS: tl.constexpr,
    BLOCK: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Move all columns of all heads: keys and values, int32 state, float32 state.

    Everything is moved as 32-bit words, BLOCK at a time. Grid: (heads, slices); a slice is up to
    BLOCK_W words of every row of keys or values, or one column of state.
    """
    head, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    PER_COLUMN: tl.constexpr = (WORDS + BLOCK_W - 1) // BLOCK_W
    if piece < WIDE_SLICES:
        move_column(
            wide, keep, head, piece // PER_COLUMN, (piece % PER_COLUMN) * BLOCK_W,
            heads, capacity, width, WORDS, BLOCK // BLOCK_W, BLOCK_W,
        )  # fmt: skip
    elif piece < WIDE_SLICES + NARROW:
        move_column(
            narrow, keep, head, piece - WIDE_SLICES, 0,
            heads, capacity, width, 1, BLOCK // 4, 1,
        )  # fmt: skip
    else:
        move_column(
            other, keep, head, piece - WIDE_SLICES - NARROW, 0,
            heads, capacity, width, 1, BLOCK // 4, 1,
        )  # fmt: skip


WORDS_OF_A_SLICE = (8, 32)
"""32 to 128 bytes: the least and the most that memory is worth reading at a time."""
WORDS_OF_A_BLOCK = 8192
"""32 KiB: what a multiprocessor must have in flight to read as fast as memory can."""
ENOUGH_SLICES = 256
"""Programs that keep every multiprocessor at work: for as many, slices are as wide as can be."""


@on_its_device
def _move_in_triton(buffers: Sequence[Tensor], slots: Tensor) -> None:
    """Launch once for buffers of which `move_as_words` is true."""
    _, N, G, capacity = buffers[0].shape[:4]
    kinds = {"wide" if x.dim() > 4 else str(x.dtype): x.view(torch.int32) for x in buffers}
    wide, *state = (kinds.get(kind) for kind in ("wide", "torch.int32", "torch.float32"))
    least, most = WORDS_OF_A_SLICE
    words, vectors = (least, 0) if wide is None else (wide.shape[-1], wide.shape[0])
    slice_words = min(most, magnitude(words))
    while slice_words > least and N * G * vectors * -(-words // slice_words) < ENOUGH_SLICES:
        slice_words //= 2
    wide_slices = vectors * -(-words // slice_words)
    columns = [0 if x is None else x.shape[0] for x in state]
    some = buffers[0].view(torch.int32)
    wide, narrow, other = (some if x is None else x for x in (wide, *state))
    move_columns[(N * G, wide_slices + sum(columns))](
        wide, narrow, other, slots.contiguous(), N * G, capacity, slots.shape[2],
        WIDE_SLICES=wide_slices, NARROW=columns[0], WORDS=words,
        BLOCK=WORDS_OF_A_BLOCK, BLOCK_W=slice_words, num_warps=8,
    )  # fmt: skip
