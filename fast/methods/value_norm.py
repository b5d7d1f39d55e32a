"""Value norm: kvlab's control for scores that protect long values."""

from kvlab.fast.engine.cache import State
from kvlab.fast.engine.observation import Observation
from kvlab.fast.engine.policy import Score
from kvlab.fast.engine.twins import twin_of
from kvlab.fast.kernels.notation import Candidates, Room, Scores
from kvlab.reference.methods import value_norm as reference


@twin_of(reference.ValueLength)
class ValueLength(Score[reference.ValueLength]):
    """The length of the value."""

    tensors_alone = True

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        return seen.values.norm(dim=-1)
