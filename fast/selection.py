"""Who stays: the only place that chooses entries."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvlab.fast.cache import in_ascending_position
from kvlab.fast.padding import last_in_use

BEYOND = torch.iinfo(torch.int32).max
"""A position that no entry has."""


def rank(scores: Float[Tensor, "*rows n"]) -> Int[Tensor, "*rows n"]:
    """Rank entries from the first to go, 0, to the last; of equal scores the later stays."""
    order = scores.argsort(dim=-1, stable=True)
    places = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def first_to_go(
    scores: Float[Tensor, "N #G n"],
    safe: Bool[Tensor, "N G n"] | None,
    positions: Int[Tensor, "N G n"],
) -> tuple[Int[Tensor, "N _ 1"], Float[Tensor, "N _ 1"]]:
    """Return the slot of each head's lowest score, of equal ones the earliest, and that score.

    The one that goes must have a score below infinity. ``safe`` None: all may go.
    """
    open_scores = scores if safe is None else scores.masked_fill(safe, torch.inf)
    lowest = open_scores.amin(dim=-1, keepdim=True)
    earliest = positions.masked_fill(open_scores != lowest, BEYOND)
    return earliest.argmin(dim=-1, keepdim=True), lowest


def eviction_order(
    scores: Float[Tensor, "N #G n"],
    safe: Bool[Tensor, "N G n"] | None,
    positions: Int[Tensor, "N G n"],
    ordered: bool,
) -> Int[Tensor, "N G n"]:
    """Return slots from the first to go: empty ones, candidates by score, safe entries.

    Of equal scores the earlier position goes first.
    """
    standing = (positions >= 0).to(torch.int8)
    if safe is not None:
        standing = standing + (safe & (positions >= 0))
    slots = torch.arange(positions.shape[-1], device=positions.device).expand_as(positions)
    slots, _ = in_ascending_position(slots, positions, ordered)
    for key in (scores.expand_as(positions), standing):
        slots = slots.gather(-1, key.gather(-1, slots).argsort(dim=-1, stable=True))
    return slots


def keep_slots(
    order: Int[Tensor, "N G n"], positions: Int[Tensor, "N G n"], kept: Sequence[int]
) -> Int[Tensor, "N G kept"]:
    """Return the last slots of ``order`` in ascending position.

    A sequence that keeps fewer than the longest has its own ``kept`` slots at the end.
    """
    width = max(kept)
    last = order[:, :, order.shape[-1] - width :]
    place = positions.gather(-1, last)
    if min(kept) < width:
        place = place.masked_fill(~last_in_use(width, kept, order.device), -1)
    return last.gather(-1, place.argsort(dim=-1, stable=True))
