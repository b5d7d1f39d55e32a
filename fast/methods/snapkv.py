"""SnapKV: attention of the end of the prompt (arXiv 2404.14469)."""

from kvlab.fast.engine.policy import Observation, Score, State
from kvlab.fast.engine.windows import (
    among_candidates,
    max_pool,
    mean_pool,
    remember_queries,
    window_received,
)
from kvlab.fast.kernels.notation import Candidates, Marks, PerEntry, Room, Scores
from kvlab.reference.methods import snapkv as reference


class WindowAttention(Score[reference.WindowAttention]):
    """Pooled attention of the last ``window`` queries."""

    tensors_alone = True

    def observe(self, state: State, seen: Observation) -> None:
        remember_queries(state, seen, self.spec.options.window)

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        looked_at = window_received(state, seen, self.spec.options.window)
        return among_candidates(looked_at, candidates, seen, self.pool)

    def pool(self, x: PerEntry, present: Marks) -> PerEntry:
        """Smooth over neighbours in the cache."""
        options = self.spec.options
        if options.pooling == "max":
            return max_pool(x, options.kernel, present)
        return mean_pool(x, options.kernel, options.border, present)
