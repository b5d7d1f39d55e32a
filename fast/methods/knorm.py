"""Key norm (arXiv 2406.11430)."""

from kvlab.fast.engine.policy import Candidates, Observation, Room, Score, Scores, State
from kvlab.reference.methods import knorm as reference


class KeyNorm(Score[reference.KeyNorm]):
    """The negative length of the key."""

    tensors_alone = True

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        return -seen.keys.norm(dim=-1)
