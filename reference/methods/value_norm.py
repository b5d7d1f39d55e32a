"""Value norm: kvlab's control for scores that protect long values; no paper defines it.

It answers VaSE, Value-Aware Stochastic KV Cache Eviction (arXiv 2606.03928): its abstract says that
a small fraction of value states are abnormally large, that a model fails when they are evicted, and
that VaSE protects them and evicts with randomness. This control has the first part alone.

Equations (numbered here):

1. s_j = ‖v_j‖₂
2. keep the B entries with the largest s, those with the longest values
"""

from dataclasses import dataclass

import numpy as np

from kvlab.reference.method import Example, Method
from kvlab.reference.observation import NO_ATTENTION, Marks, Observation, Scores, State
from kvlab.reference.policy import Edges, EveryBlock, Policy, Score


@dataclass(frozen=True)
class ValueLength(Score):
    """The length of the value."""

    needs = NO_ATTENTION

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        return np.linalg.norm(seen.values, axis=-1)  # [ValueNorm 1]


@dataclass(frozen=True)
class ValueNorm(Method):
    """Keep the entries with the longest values; attention is not used. kvlab's own control."""

    recent: int = 0
    """Newest entries that are protected."""
    every: int = 1
    """Generated tokens between two evictions."""

    name = "value_norm"
    source = "a control; no paper"
    published = ""
    equations = ("ValueNorm 1", "ValueNorm 2")
    examples = (Example("value_norm"), Example("value_norm@recent=3,every=4"))
    compared = ("value_norm", "value_norm@recent=16")

    def policy(self, budget: int | None) -> Policy:
        edges = Edges(recent=self.recent)
        return self.composed(ValueLength(), EveryBlock(self.every), edges, budget)  # [ValueNorm 2]
