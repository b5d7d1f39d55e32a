"""SnapKV: what the end of the prompt looks at (arXiv 2404.14469)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from kvlab.fast.cache import State
from kvlab.fast.policy import Observation, Score, twin_of
from kvlab.fast.windows import (
    among_candidates,
    max_pool,
    mean_pool,
    remember_queries,
    window_received,
)
from kvlab.reference.methods import snapkv as reference
from kvlab.reference.policy import Clock
from kvlab.reference.windows import Border


@twin_of(reference.WindowAttention)
@dataclass(frozen=True)
class WindowAttention(Score):
    """Pooled attention of the last ``window`` queries."""

    window: int
    kernel: int
    pooling: Literal["mean", "max"]
    border: Border

    def reads(self, clock: Clock) -> str:
        """None: the window is looked at when it decides."""
        return "none"

    def observe(self, state: State, seen: Observation) -> None:
        """Remember the last queries, across blocks."""
        remember_queries(state, seen, self.window)

    def score(
        self,
        state: State,
        seen: Observation,
        candidates: Bool[Tensor, "N G n"] | None,
        room: Sequence[int],
    ) -> Float[Tensor, "N G n"]:
        """Pool what the window's queries look at."""
        looked_at = window_received(state, seen, self.window)
        return among_candidates(looked_at, candidates, seen, self.pool)

    def pool(
        self, x: Float[Tensor, "N G n"], present: Bool[Tensor, "N G n"]
    ) -> Float[Tensor, "N G n"]:
        """Smooth over neighbours in the cache."""
        if self.pooling == "max":
            return max_pool(x, self.kernel, present)
        return mean_pool(x, self.kernel, self.border, present)
