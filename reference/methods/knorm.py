"""Key norm: a short key is read often (arXiv 2406.11430).

Equations (numbered here):

1. s_j = −‖k_j‖₂
2. keep the B entries with the largest s, those with the shortest keys
"""

from dataclasses import dataclass

import numpy as np

from kvlab.reference.method import Example, Method
from kvlab.reference.observation import NO_ATTENTION, Marks, Observation, Scores, State
from kvlab.reference.policy import Edges, EveryBlock, Policy, Score


@dataclass(frozen=True)
class KeyNorm(Score):
    """The negative length of the key."""

    needs = NO_ATTENTION
    signed = True

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        return -np.linalg.norm(seen.keys, axis=-1)  # [Knorm 1]


@dataclass(frozen=True)
class Knorm(Method):
    """Keep the entries with the shortest keys; attention is not used."""

    recent: int = 0
    """Newest entries that are protected."""
    every: int = 1
    """Generated tokens between two evictions."""

    name = "knorm"
    source = "Devoto et al., An L2 Norm-Based Strategy for KV Cache Compression, 2406.11430"
    published = "2024-06"
    equations = ("Knorm 1", "Knorm 2")
    examples = (Example("knorm"), Example("knorm@recent=3,every=4"))
    compared = ("knorm", "knorm@recent=16")

    def policy(self, budget: int | None) -> Policy:
        edges = Edges(recent=self.recent)
        return self.composed(KeyNorm(), EveryBlock(self.every), edges, budget)  # [Knorm 2]
