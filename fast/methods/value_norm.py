"""Value norm: kvlab's control for scores that protect long values."""

from kvlab.fast.engine.policy import Candidates, Observation, Room, Score, Scores, State
from kvlab.reference.methods import value_norm as reference


class ValueLength(Score[reference.ValueLength]):
    """The length of the value."""

    tensors_alone = True

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        return seen.values.norm(dim=-1)
