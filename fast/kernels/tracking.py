"""What an attention kernel does with the probabilities, besides handing them out."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Bool, Int
from torch import Tensor

Joining = Literal["sum", "mean", "max"]
Reduction = Literal["none", "sum", "mean", "max", "skip"]
"""How the query heads of a KV head are joined; ``none`` leaves them apart, ``skip`` out."""


@dataclass(frozen=True)
class Tracking:
    """LazyEviction's counters of every entry, updated in place by what the token received."""

    elapsed: Int[Tensor, "N G n"]
    """Tokens since the latest activation."""
    interval: Int[Tensor, "N G n"]
    """Longest time between two activations."""
    threshold: float


def track(
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
