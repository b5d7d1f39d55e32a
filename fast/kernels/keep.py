"""Which slots stay.

Bytes, for N·G heads of n entries: scores, marks and positions, 9·n, once from memory; radix
selection reads them five times more from the processor's cache.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from kvlab.fast.engine.batch import last_in_use
from kvlab.fast.engine.notation import Marks, Positions, Scores
from kvlab.fast.engine.selection import in_ascending_position
from kvlab.fast.kernels.choice import uses_triton


def keep_slots(
    scores: Scores,
    safe: Marks | None,
    positions: Positions,
    kept: Sequence[int],
    ordered: bool,
) -> Int[Tensor, "N G kept"]:
    """Return the slots that stay in ascending position: the safe ones and the best of the rest.

    Args:
        scores: entries with higher scores stay; of equal scores the later position stays. One row
            for all heads if they decide together.
        safe: entries that stay whatever their score; None for no entry.
        positions: -1 marks empty slots.
        kept: how many stay, for each sequence; at least the safe ones, at most the entries.
        ordered: whether slots are in ascending position, the empty ones first.

    Returns:
        As many slots as the sequence that keeps most; a sequence that keeps fewer has its slots at
        the end, after arbitrary ones. PyTorch computes this unequal case.
    """
    if ordered and min(kept) == max(kept) and uses_triton(scores):
        from kvlab.fast.kernels.triton.keep import keep_slots_triton

        return keep_slots_triton(scores, safe, positions, kept[0])
    width = max(kept)
    last = eviction_order(scores, safe, positions, ordered)[:, :, positions.shape[-1] - width :]
    place = positions.gather(-1, last)
    if min(kept) < width:
        place = place.masked_fill(~last_in_use(width, kept, positions.device), -1)
    return last.gather(-1, place.argsort(dim=-1, stable=True))


def eviction_order(
    scores: Scores, safe: Marks | None, positions: Positions, ordered: bool
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
