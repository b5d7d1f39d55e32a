"""Full cache: nothing is evicted."""

from kvlab.fast.engine.policy import Candidates, Observation, Room, Score, Scores, State
from kvlab.reference.methods import full as reference


class Recency(Score[reference.Recency]):
    """Rates newer entries higher, for methods whose schedule and protection already decide."""

    tensors_alone = True

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        return seen.positions.to(seen.queries.dtype)
