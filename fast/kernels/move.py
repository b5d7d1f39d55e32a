"""Moving the survivors together.

Bytes: every survivor is read and written once, in all columns.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from kvlab.fast.kernels.choice import uses_triton


def move_survivors(
    buffers: Mapping[Any, Tensor], slots: Int[Tensor, "N G kept"], ascending: bool
) -> None:
    """Move rows to the front of their buffers, in place: row i becomes what row ``slots[i]`` was.

    Args:
        buffers: buffers of the layout ``[columns, N, G, capacity, ...]``.
        slots: which rows stay.
        ascending: whether slots ascend and none lies before its new place.
    """
    first = next(iter(buffers.values()))
    if ascending and uses_triton(first) and move_as_words(buffers):
        from kvlab.fast.kernels.triton.move import move_survivors_triton

        move_survivors_triton(list(buffers.values()), slots)
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
