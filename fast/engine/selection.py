"""Order among entries: the first to evict, and ranks. `kvlab.fast.kernels.keep` finds keep sets."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.engine.notation import Marks, Positions, Scores

BEYOND = torch.iinfo(torch.int32).max
"""A position that no entry has."""


def rank(scores: Float[Tensor, "*rows n"]) -> Int[Tensor, "*rows n"]:
    """Rank entries from the first to evict, 0, to the last; of equal scores the later is kept."""
    order = scores.argsort(dim=-1, stable=True)
    places = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def in_ascending_position(
    x: Tensor, positions: Positions, ordered: bool
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return ``x`` in cache order, and the function that puts such an array back into slots."""
    if ordered:
        return x, lambda y: y
    order = positions.argsort(dim=-1)
    return x.gather(-1, order), lambda y: torch.empty_like(y).scatter_(-1, order, y)


def first_to_go(
    scores: Scores, safe: Marks | None, positions: Positions
) -> tuple[Int[Tensor, "N _ 1"], Float[Tensor, "N _ 1"]]:
    """Return the slot of each head's lowest score, of equal ones the earliest, and that score.

    That score must be below infinity. ``safe`` None: every entry may be evicted.
    """
    open_scores = scores if safe is None else scores.masked_fill(safe, torch.inf)
    lowest = open_scores.amin(dim=-1, keepdim=True)
    earliest = positions.masked_fill(open_scores != lowest, BEYOND)
    return earliest.argmin(dim=-1, keepdim=True), lowest
