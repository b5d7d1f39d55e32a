"""Key norm (arXiv 2406.11430)."""

from dataclasses import dataclass

from kvlab.fast.cache import State
from kvlab.fast.notation import Candidates, Room, Scores
from kvlab.fast.observation import Observation
from kvlab.fast.policy import Score, twin_of
from kvlab.reference.methods import knorm as reference


@twin_of(reference.KeyNorm)
@dataclass(frozen=True)
class KeyNorm(Score):
    """The negative length of the key."""

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        return -seen.keys.norm(dim=-1)
