"""Counters of recurrence: tokens since an entry was last active, and its longest pause.

LazyEviction decides by them. Attention to one token can update them while it has the probabilities.
"""

from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class RecurrenceCounters:
    """Counters of every entry that attention to one token updates, in place."""

    elapsed: Int[Tensor, "N G n"]
    """Tokens since the entry was last active: since what it received reached the threshold."""
    interval: Int[Tensor, "N G n"]
    """Longest time between two activations."""
    threshold: float


def count_recurrence(
    elapsed: Int[Tensor, "N G n"],
    interval: Int[Tensor, "N G n"],
    active: Bool[Tensor, "N G n"],
    counts: Bool[Tensor, "N G n"],
) -> None:
    """Take in what a token activated, in place.

    Args:
        elapsed: generated tokens since each entry's latest activation, or since before its birth.
        interval: longest time between two activations.
        active: entries that are activated now.
        counts: those of them whose time since the last activation counts as an interval.
    """
    interval.clamp_(min=elapsed * counts)
    elapsed.masked_fill_(active, 0)
