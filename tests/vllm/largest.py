"""A method of one's own, without a PyTorch implementation: the largest attention so far."""

from dataclasses import dataclass

import numpy as np

from kvlab.reference.cache import Column
from kvlab.reference.method import Method, require_budget
from kvlab.reference.policy import Edges, Entries, EveryBlock, Policy, Score


@dataclass(frozen=True)
class LargestAttention(Score):
    @property
    def columns(self):
        return {"largest": Column("largest attention so far")}

    def observe(self, state, seen):
        rows = seen.attention.mean(axis=1)
        return state.with_entries(largest=np.maximum(state.entries["largest"], rows.max(axis=1)))

    def score(self, state, seen, candidates, room):
        return state.entries["largest"]


@dataclass(frozen=True)
class Largest(Method):
    name = "largest"

    def policy(self, budget):
        given = Entries(require_budget(self.name, budget))
        return Policy(self.name, LargestAttention(), EveryBlock(), Edges(), given)
