"""Moving the survivors together.

Bytes: every survivor is read and written once, in all columns. In Triton, one program a chunk: it
reads at once, and writes when the chunks before it have read.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.common import constexpr, kernel, magnitude, on_device_of, tl
from kvlab.fast.kernels.notation import Slots, Tensor


def move_survivors(buffers: Mapping[Any, Tensor], slots: Slots, ascending: bool) -> None:
    """Move rows to the front of their buffers, in place: row i becomes what row ``slots[i]`` was.

    Buffers have the layout ``[columns, N, G, capacity, ...]``. ``ascending``: slots ascend, and
    none lies before its new place.
    """
    first = next(iter(buffers.values()))
    if ascending and uses_triton(first) and move_as_words(buffers):
        with on_device_of(first):
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
def wait_for(flags, count):
    """Wait until the first ``count`` flags are set."""
    for first in range(0, count, FLAGS_READ):
        flag = first + tl.arange(0, FLAGS_READ)
        missing = 1
        while missing > 0:
            seen = tl.load(flags + flag, mask=flag < count, other=1, volatile=True)
            missing = tl.sum(1 - seen, axis=0)


@kernel
def move_chunk(
    buffer, keep, read, head, column, chunk,
    heads, capacity, width,
    WORDS: constexpr, BLOCK_N: constexpr, BLOCK_W: constexpr,
):  # fmt: skip
    """Move a chunk of the survivors of one column of a head.

    Row i takes row keep[i] ≥ i, so chunks before this one alone may want what it overwrites: it
    writes when those and all its threads have read.
    """
    to, word = chunk * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_W)
    source = tl.load(keep + head * width + to, mask=to < width, other=0).to(tl.int64)
    start = buffer + (column * heads + head) * capacity * WORDS
    real = (to < width)[:, None] & (word < WORDS)[None, :]
    rows = tl.load(start + source[:, None] * WORDS + word, mask=real, other=0)
    tl.debug_barrier()
    tl.atomic_xchg(read + chunk, 1)
    wait_for(read, chunk)
    tl.debug_barrier()
    tl.store(start + to[:, None].to(tl.int64) * WORDS + word, rows, mask=real)


@partial(kernel, changing=("wide_turns",))
def move_columns(
    wide, narrow, other, keep, turns, heads, capacity, width, wide_turns,
    WIDE: constexpr, NARROW: constexpr, OTHER: constexpr, WORDS: constexpr, BLOCK: constexpr,
    BLOCK_W: constexpr,
):  # fmt: skip
    """Move all columns of all heads: keys and values, int32 state, float32 state.

    Everything is moved as 32-bit words, up to BLOCK at a time. ``turns`` are zeros: the number of
    programs that have begun, then a flag for every chunk that was read. A program takes the next
    turn, so that those for which it waits have begun. Grid: chunks of keys and values, of state.
    """
    ROWS: constexpr = BLOCK // BLOCK_W
    ROWS_OF_STATE: constexpr = BLOCK // 4
    turn, read = tl.atomic_add(turns, 1), turns + 1
    if turn < wide_turns:
        lines = heads * WIDE
        line, chunk = (turn % lines).to(tl.int64), turn // lines
        move_chunk(
            wide, keep, read + line * tl.cdiv(width, ROWS), line % heads, line // heads, chunk,
            heads, capacity, width, WORDS, ROWS, BLOCK_W,
        )  # fmt: skip
    else:
        lines = heads * (NARROW + OTHER)
        line, chunk = ((turn - wide_turns) % lines).to(tl.int64), (turn - wide_turns) // lines
        head, column = line % heads, line // heads
        read += wide_turns + line * tl.cdiv(width, ROWS_OF_STATE)
        if column < NARROW:
            move_chunk(
                narrow, keep, read, head, column, chunk,
                heads, capacity, width, 1, ROWS_OF_STATE, 1,
            )  # fmt: skip
        else:
            move_chunk(
                other, keep, read, head, column - NARROW, chunk,
                heads, capacity, width, 1, ROWS_OF_STATE, 1,
            )  # fmt: skip


WORDS_OF_A_BLOCK = 4096
"""16 KiB: what a multiprocessor must have in flight to read as fast as memory can."""
FLAGS_READ = constexpr(1024)
"""Flags that a program looks at together."""


def _move_in_triton(buffers: Sequence[Tensor], slots: Tensor) -> None:
    """Launch once for buffers of which `move_as_words` is true."""
    _, N, G, capacity = buffers[0].shape[:4]
    kinds = {"wide" if x.dim() > 4 else str(x.dtype): x.view(torch.int32) for x in buffers}
    wide, *state = (kinds.get(kind) for kind in ("wide", "torch.int32", "torch.float32"))
    words, vectors = (1, 0) if wide is None else (wide.shape[-1], wide.shape[0])
    columns = [0 if x is None else x.shape[0] for x in state]
    some = buffers[0].view(torch.int32)
    wide, narrow, other = (some if x is None else x for x in (wide, *state))
    width, block_words = slots.shape[2], magnitude(words)
    wide_turns = N * G * vectors * -(-width // (WORDS_OF_A_BLOCK // block_words))
    state_turns = N * G * sum(columns) * -(-width // (WORDS_OF_A_BLOCK // 4))
    turns = torch.zeros(1 + wide_turns + state_turns, dtype=torch.int32, device=slots.device)
    move_columns[(wide_turns + state_turns,)](
        wide, narrow, other, slots.contiguous(), turns, N * G, capacity, width, wide_turns,
        WIDE=vectors, NARROW=columns[0], OTHER=columns[1], WORDS=words,
        BLOCK=WORDS_OF_A_BLOCK, BLOCK_W=block_words, num_warps=8,
    )  # fmt: skip
