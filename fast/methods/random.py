"""Random eviction: the control."""

import torch

from kvlab.fast.engine.cache import State
from kvlab.fast.engine.notation import Candidates, Room, Scores
from kvlab.fast.engine.observation import Observation
from kvlab.fast.engine.policy import Score
from kvlab.fast.engine.twins import twin_of
from kvlab.reference.methods import random as reference
from kvlab.reference.methods.random import draws


@twin_of(reference.Draw)
class Draw(Score[reference.Draw]):
    """A random number per entry; the number of a sequence's layer is remembered per sequence."""

    def observe(self, state: State, seen: Observation) -> None:
        if "layer" not in state.stream:
            shape = (len(seen.positions), 1, 1)
            place = torch.tensor([seen.layer, seen.first_head], device=seen.positions.device)
            state.stream["layer"], state.stream["head"] = (x.expand(shape) for x in place)

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        self.observe(state, seen)
        positions, stream = seen.positions, state.stream
        heads = torch.arange(positions.shape[1], device=positions.device)[:, None] + stream["head"]
        time = seen.clock.seen.long() if self.spec.options.draw == "each" else 0
        noise = draws(self.spec.options.seed, stream["layer"], heads, positions.long(), time)
        return noise.to(seen.queries.dtype)
