"""Random eviction: the control."""

import torch

from kvlab.fast.engine.policy import Candidates, Observation, Room, Score, Scores, State
from kvlab.reference.methods import random as reference
from kvlab.reference.methods.random import BITS, whole_draws


class Draw(Score[reference.Draw]):
    """A random number per entry; the number of a sequence's layer is remembered per sequence."""

    tensors_alone = True

    def observe(self, state: State, seen: Observation) -> None:
        if "layer" not in state.stream:
            layers = torch.tensor(seen.numbers, device=seen.positions.device)
            sequences = len(seen.positions) // len(layers)
            state.stream["layer"] = layers.repeat_interleave(sequences)[:, None, None]

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        self.observe(state, seen)
        positions, layer = seen.positions, state.stream["layer"]
        heads = torch.arange(positions.shape[1], device=positions.device)[:, None]
        time = seen.clock.seen.long() if self.spec.draw == "each" else 0
        noise = whole_draws(self.spec.seed, layer, heads, positions.long(), time)
        return noise.to(seen.queries.dtype) / 2.0**BITS
