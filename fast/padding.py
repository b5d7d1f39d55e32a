"""Sequences of unequal length in one batch: numbers that the host knows, as masks on the device."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def to_device(numbers: Sequence[int], device: torch.device) -> Int[Tensor, " N"]:
    """Copy numbers to a device without waiting for it."""
    host = torch.tensor(numbers)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def last_in_use(
    width: int, counts: Sequence[int], device: torch.device
) -> Bool[Tensor, "#N 1 width"]:
    """Mark the last ``counts`` of ``width`` places, for each sequence."""
    places = torch.arange(width, device=device)
    if min(counts) == max(counts):
        return (places >= width - counts[0])[None, None]
    first = to_device([width - count for count in counts], device)
    return (places >= first[:, None])[:, None]


def kept_slots(
    positions: Int[Tensor, "N G n"], keep: Int[Tensor, "N G kept"], counts: Sequence[int]
) -> Bool[Tensor, "N G n"]:
    """Mark the slots of a keep set, whose last ``counts`` are in use for each sequence."""
    used = last_in_use(keep.shape[2], counts, keep.device).expand_as(keep)
    return torch.zeros_like(positions, dtype=torch.bool).scatter_(-1, keep, used)
