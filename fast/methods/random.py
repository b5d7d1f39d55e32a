"""Random eviction: the control."""

from dataclasses import dataclass
from typing import Literal

import torch

from kvlab.fast.engine.cache import State
from kvlab.fast.engine.notation import Candidates, Room, Scores
from kvlab.fast.engine.observation import Observation
from kvlab.fast.engine.policy import Score, twin_of
from kvlab.reference.methods import random as reference
from kvlab.reference.methods.random import draws


@twin_of(reference.Draw)
@dataclass(frozen=True)
class Draw(Score):
    """A random number per entry; the number of a sequence's layer is remembered per sequence."""

    seed: int
    draw: Literal["each", "once"]

    def observe(self, state: State, seen: Observation) -> None:
        if "layer" not in state.stream:
            shape = (len(seen.positions), 1, 1)
            place = torch.tensor([seen.layer, seen.first_head], device=seen.positions.device)
            state.stream["layer"], state.stream["head"] = (x.expand(shape) for x in place)

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        self.observe(state, seen)
        positions, stream = seen.positions, state.stream
        heads = torch.arange(positions.shape[1], device=positions.device)[:, None] + stream["head"]
        time = seen.clock.seen.long() if self.draw == "each" else 0
        noise = draws(self.seed, stream["layer"], heads, positions.long(), time)
        return noise.to(seen.queries.dtype)
