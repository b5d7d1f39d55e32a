"""Random Attention: the prompt, the newest, and a fresh sample of the rest (arXiv 2609.03430)."""

from dataclasses import dataclass

import torch

from kvlab.fast.engine.policy import Around, Candidates, Observation, Room, Scores, State
from kvlab.fast.kernels.common import to_device
from kvlab.reference.methods import random_attention as reference


@dataclass(frozen=True)
class PromptFirst(Around[reference.PromptFirst]):
    """A draw from [0, 1), and one more for the prompt, of which all but one of the places hold."""

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        drawn = self.inner.score(state, seen, candidates, room)
        places = to_device([each - 1 for each in room], drawn.device)[:, None, None]
        return drawn + (seen.positions < torch.minimum(seen.clock.prompt, places))
