"""KeyDiff: keys that point elsewhere than most (arXiv 2504.15364).

Equations (numbered here):

1. μ = (1/n) Σ_j k_j / ‖k_j‖₂ over the present entries
2. s_j = -cos(k_j, μ)
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvlab.reference.method import Example, Method
from kvlab.reference.observation import NO_ATTENTION, Array, Marks, Observation, Scores, State
from kvlab.reference.policy import AfterPrefill, EveryBlock, Nobody, Policy, Score

SHORTEST = 1e-12
"""A shorter vector has no direction: its cosine is 0."""


@dataclass(frozen=True)
class KeyDifference(Score):
    """The negative cosine of a key and the mean direction."""

    anchor: Literal["directions", "keys"]

    needs = NO_ATTENTION
    signed = True

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        unit = direction(seen.keys)
        mean = unit if self.anchor == "directions" else seen.keys
        anchor = direction(mean.mean(axis=1, keepdims=True))  # [KeyDiff 1]
        return -(unit * anchor).sum(axis=-1)  # [KeyDiff 2]


def direction(vectors: Array) -> Array:
    """Return vectors of length 1, or of 0 where a vector has no direction."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), SHORTEST)


@dataclass(frozen=True)
class KeyDiff(Method):
    """Keep the keys that are least like the others; attention is not used."""

    anchor: Literal["directions", "keys"] = "directions"
    """What the mean is of: the keys' directions, or the keys, as the cheaper variant."""
    schedule: Literal["every_block", "after_prefill"] = "every_block"
    """``every_block``: a fixed budget at all times. ``after_prefill``: decoding never evicts."""
    every: int = 1
    """Generated tokens between two evictions under ``every_block``."""

    name = "keydiff"
    source = "Park et al., KeyDiff: Key Similarity-Based KV Cache Eviction, 2504.15364"
    published = "2025-04"
    equations = ("KeyDiff 1", "KeyDiff 2")
    examples = (
        Example("keydiff"),
        Example("keydiff@anchor=keys,every=4"),
        Example("keydiff@schedule=after_prefill", shared=False),
    )
    compared = ("keydiff", "keydiff@recent=16")

    def policy(self, budget: int | None) -> Policy:
        once = self.schedule == "after_prefill"
        schedule = AfterPrefill() if once else EveryBlock(self.every)
        return self.composed(KeyDifference(self.anchor), schedule, Nobody(), budget)
