"""What an attention kernel does with the probabilities, besides handing them out."""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Int
from torch import Tensor

Reduction = Literal["none", "sum", "mean", "max"]


@dataclass(frozen=True)
class Tracking:
    """LazyEviction's counters of every entry, updated in place by what the token received."""

    elapsed: Int[Tensor, "N G n"]
    """Tokens since the latest activation."""
    interval: Int[Tensor, "N G n"]
    """Longest time between two activations."""
    threshold: float
