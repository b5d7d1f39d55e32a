"""Key norm (arXiv 2406.11430)."""

from kvlab.fast.engine.cache import State
from kvlab.fast.engine.observation import Observation
from kvlab.fast.engine.policy import Score
from kvlab.fast.engine.twins import twin_of
from kvlab.fast.kernels.notation import Candidates, Room, Scores
from kvlab.reference.methods import knorm as reference


@twin_of(reference.KeyNorm)
class KeyNorm(Score[reference.KeyNorm]):
    """The negative length of the key."""

    tensors_alone = True

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        return -seen.keys.norm(dim=-1)
