"""RPC: reasoning path compression (arXiv 2505.13866)."""

from dataclasses import dataclass

from kvlab.fast.engine.cache import State
from kvlab.fast.engine.notation import Candidates, Room, Scores
from kvlab.fast.engine.observation import Observation
from kvlab.fast.engine.policy import Budget, Score, twin_of
from kvlab.fast.engine.windows import among_candidates, mean_pool, remember_queries, window_received
from kvlab.reference.methods import rpc as reference
from kvlab.reference.observation import Clock


@twin_of(reference.SelectorAttention)
@dataclass(frozen=True)
class SelectorAttention(Score):
    """Pooled attention of the selector window over the candidates."""

    selector: int
    kernel: int
    heads: str

    @property
    def couples_heads(self) -> bool:
        return self.heads == "all"

    def observe(self, state: State, seen: Observation) -> None:
        remember_queries(state, seen, self.selector)

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        looked_at = window_received(state, seen, self.selector, over=candidates)
        if self.heads == "all":
            looked_at = looked_at.mean(dim=1, keepdim=True)
        return among_candidates(
            looked_at,
            candidates,
            seen,
            lambda x, present: mean_pool(x, self.kernel, "zero", present),
        )


@twin_of(reference.ShareOfGenerated)
@dataclass(frozen=True)
class ShareOfGenerated(Budget):
    """The generated part shrinks to 1/``compression`` of what was written."""

    interval: int
    selector: int
    compression: float

    def room(self, clock: Clock, entries: int, safe: int) -> int:
        compressions = (clock.generated - self.selector) // self.interval
        return compressions * int(self.interval // self.compression)
