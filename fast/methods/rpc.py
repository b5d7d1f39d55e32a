"""RPC: reasoning path compression (arXiv 2505.13866)."""

from kvlab.fast.engine.policy import Budget, Clock, Observation, Score, State
from kvlab.fast.engine.windows import among_candidates, mean_pool, remember_queries, window_received
from kvlab.fast.kernels.notation import Candidates, Room, Scores
from kvlab.reference.methods import rpc as reference


class SelectorAttention(Score[reference.SelectorAttention]):
    """Pooled attention of the selector window over the candidates."""

    tensors_alone = True

    def observe(self, state: State, seen: Observation) -> None:
        remember_queries(state, seen, self.spec.options.selector)

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        looked_at = window_received(state, seen, self.spec.options.selector, over=candidates)
        if self.spec.options.heads == "all":
            looked_at = looked_at.mean(dim=1, keepdim=True)
        kernel = self.spec.options.kernel
        return among_candidates(looked_at, candidates, seen, mean_pool, kernel, "zero")


class ShareOfGenerated(Budget[reference.ShareOfGenerated]):
    """The generated part shrinks to 1/``compression`` of what was written."""

    def room(self, clock: Clock, entries: int, protected: int) -> int:
        return self.spec.entries(clock)
