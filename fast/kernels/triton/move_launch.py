"""Launches the kernel of `move`."""

# pyright: reportArgumentType=false
# Triton makes constexpr of plain numbers.

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from kvlab.fast.kernels.triton.move import move_survivors
from kvlab.fast.kernels.triton.strides import on_its_device

WORDS_OF_A_SLICE = 32
"""128 bytes: what one read of a row fetches from memory."""


@on_its_device
def move_survivors_triton(buffers: Sequence[Tensor], slots: Tensor) -> None:
    """Do what `move_survivors` says, in Triton, in one launch.

    Raises:
        ValueError: if a buffer is not contiguous, or there are two of one kind.
    """
    _, N, G, capacity = buffers[0].shape[:4]
    kinds: dict[str, Tensor] = {}
    for buffer in buffers:
        if not buffer.is_contiguous():
            raise ValueError(f"buffer of strides {buffer.stride()} must be contiguous")
        kind = "wide" if buffer.dim() > 4 else str(buffer.dtype)
        if kind in kinds:
            raise ValueError(f"two buffers hold {kind}")
        kinds[kind] = buffer.view(torch.int32)
    wide = kinds.get("wide")
    narrow, other = kinds.get("torch.int32"), kinds.get("torch.float32")
    if len(kinds) > sum(x is not None for x in (wide, narrow, other)):
        raise ValueError(f"buffers of {', '.join(kinds)} cannot be moved as 32-bit words")
    words = 1 if wide is None else wide.shape[-1]
    slice_words = min(WORDS_OF_A_SLICE, triton.next_power_of_2(words))
    wide_slices = 0 if wide is None else wide.shape[0] * -(-words // slice_words)
    columns = [0 if x is None else x.shape[0] for x in (narrow, other)]
    some = buffers[0].view(torch.int32)
    kept = slots.shape[2]
    block = 128
    move_survivors[(N * G, wide_slices + sum(columns))](
        some if wide is None else wide,
        some if narrow is None else narrow,
        some if other is None else other,
        slots.contiguous(), N * G, capacity, kept,
        WIDE_SLICES=wide_slices, NARROW=columns[0], WORDS=words,
        BLOCK_N=block, BLOCK_W=slice_words,
    )  # fmt: skip
