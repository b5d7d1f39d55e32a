"""Who stays.

Bytes, for N·G heads of n entries: scores, marks and positions, 9·n, once from memory; radix
selection reads them five times more from the processor's cache.
"""

from collections.abc import Sequence

from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvlab.fast import selection
from kvlab.fast.kernels.choice import uses_triton


def keep_slots(
    scores: Float[Tensor, "N #G n"],
    safe: Bool[Tensor, "N G n"] | None,
    positions: Int[Tensor, "N G n"],
    kept: Sequence[int],
    ordered: bool,
) -> Int[Tensor, "N G kept"]:
    """Return the slots that stay in ascending position: the safe ones and the best of the rest.

    Args:
        scores: higher is kept, of equal ones the later position; one row where heads decide
            together.
        safe: who stays whatever the score; None for nobody.
        positions: -1 marks empty slots.
        kept: how many stay, for each sequence; at least the safe ones, at most the entries.
        ordered: whether slots are in ascending position, the empty ones first.

    Returns:
        As many slots as the sequence that keeps most; one that keeps fewer has them at the end,
        after others: then PyTorch finds them.
    """
    if ordered and min(kept) == max(kept) and uses_triton(scores):
        from kvlab.fast.kernels.triton.keep_launch import keep_slots_triton

        return keep_slots_triton(scores, safe, positions, kept[0])
    return keep_slots_torch(scores, safe, positions, kept, ordered)


def keep_slots_torch(
    scores: Float[Tensor, "N #G n"],
    safe: Bool[Tensor, "N G n"] | None,
    positions: Int[Tensor, "N G n"],
    kept: Sequence[int],
    ordered: bool,
) -> Int[Tensor, "N G kept"]:
    """Do what `keep_slots` says, in PyTorch."""
    order = selection.eviction_order(scores.expand_as(positions), safe, positions, ordered)
    return selection.keep_slots(order, positions, kept)
