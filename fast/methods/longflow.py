"""LongFlow: the entry that gave least to the newest output leaves (arXiv 2603.11504)."""

import torch

from kvlab.fast.engine.policy import Candidates, Observation, Room, Score, Scores, State
from kvlab.fast.engine.windows import (
    among_candidates,
    mean_pool,
    remember_queries,
    window_received,
)
from kvlab.reference.methods import longflow as reference
from kvlab.reference.methods.longflow import KERNEL


class Contribution(Score[reference.Contribution]):
    """Length of the weighted value in the newest output; after the prompt, attention of its end."""

    tensors_alone = True

    def observe(self, state: State, seen: Observation) -> None:
        if seen.clock.prefilling:
            remember_queries(state, seen, self.spec.window)
        else:
            state.stream.clear()

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        if seen.clock.prefilling:
            return self.after_prompt(state, seen, candidates)
        return seen.received("mean")[:, :, -1] * seen.values.abs().mean(dim=-1)

    def after_prompt(self, state: State, seen: Observation, candidates: Candidates) -> Scores:
        """Return infinity for the window, and what it pays the other candidates."""
        older = seen.present & (seen.positions < seen.clock.oldest_of(self.spec.window))
        older = older if candidates is None else older & candidates
        paid = window_received(state, seen, self.spec.window, older)
        pooled = among_candidates(paid, older, seen, mean_pool, KERNEL, "zero")
        return torch.where(older, pooled, torch.inf)
