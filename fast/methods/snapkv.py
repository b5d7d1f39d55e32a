"""SnapKV: attention of the end of the prompt (arXiv 2404.14469)."""

from dataclasses import dataclass
from typing import Literal

from kvlab.fast.engine.cache import State
from kvlab.fast.engine.notation import Candidates, Marks, PerEntry, Room, Scores
from kvlab.fast.engine.observation import Observation
from kvlab.fast.engine.policy import Score, twin_of
from kvlab.fast.engine.windows import (
    among_candidates,
    max_pool,
    mean_pool,
    remember_queries,
    window_received,
)
from kvlab.reference.methods import snapkv as reference
from kvlab.reference.windows import Border


@twin_of(reference.WindowAttention)
@dataclass(frozen=True)
class WindowAttention(Score):
    """Pooled attention of the last ``window`` queries."""

    window: int
    kernel: int
    pooling: Literal["mean", "max"]
    border: Border

    def observe(self, state: State, seen: Observation) -> None:
        remember_queries(state, seen, self.window)

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        looked_at = window_received(state, seen, self.window)
        return among_candidates(looked_at, candidates, seen, self.pool)

    def pool(self, x: PerEntry, present: Marks) -> PerEntry:
        """Smooth over neighbours in the cache."""
        if self.pooling == "max":
            return max_pool(x, self.kernel, present)
        return mean_pool(x, self.kernel, self.border, present)
