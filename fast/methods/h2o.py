"""H2O: heavy hitters by accumulated attention (arXiv 2306.14048)."""

from kvlab.fast.engine.policy import Candidates, Observation, Room, Score, Scores, State
from kvlab.reference.methods import h2o as reference


class AccumulatedAttention(Score[reference.AccumulatedAttention]):
    """Sum of all attention that an entry has received since it was written."""

    tensors_alone = True

    def observe(self, state: State, seen: Observation) -> None:
        received = seen.received(self.spec.options.reduce)
        rows = received.shape[2]
        state.entries["accumulated"].add_(received[:, :, 0] if rows == 1 else received.sum(dim=2))

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        return state.entries["accumulated"]
