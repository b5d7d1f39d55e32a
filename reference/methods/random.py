"""Random eviction: the control that every useful score has to beat.

Equations (numbered here):

1. u_j = a draw from [0, 1) for entry j, anew at every decision
2. keep the entries with the largest u

``random:h2o`` is the control of H2O: random eviction under H2O's protection, schedule and budget.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from kvlab.reference.granularity import OneForAllHeads, with_score
from kvlab.reference.method import Example, Method, Wrapper
from kvlab.reference.observation import NO_ATTENTION, Array, Marks, Observation, Scores, State
from kvlab.reference.policy import Edges, EveryBlock, Policy, Score

MULTIPLIERS = (0x7FEB352D, 0x5BD1E995, 0x27D4EB2F)
"""Odd numbers of 31 bits, well mixed: their products with 32 bits fit 64 signed ones."""
BITS = 24
"""Bits of a draw: as many as a 32-bit float holds exactly."""


def mixed(numbers: Any) -> Any:
    """Scatter whole numbers over 0 … 2³² − 1, so that neighbours have nothing in common."""
    numbers = numbers % 2**32
    for multiplier in MULTIPLIERS:
        numbers = (numbers ^ (numbers >> 15)) * multiplier % 2**32
    return numbers ^ (numbers >> 16)


def draws(*coordinates: Any) -> Any:
    """Return a draw from [0, 1) for every combination of numbers, or of arrays of 64 bits."""
    return whole_draws(*coordinates) / 2.0**BITS


def whole_draws(*coordinates: Any) -> Any:
    """Return these draws as whole numbers, times 2 to the power of `BITS`."""
    total = 0
    for coordinate in coordinates:
        total = mixed(total + mixed(coordinate + 1))
    return total >> (32 - BITS)


@dataclass(frozen=True)
class Draw(Score):
    """A random number per entry, the same wherever and in whatever batch it is drawn."""

    draw: Literal["each", "once"]
    seed: int

    needs = NO_ATTENTION

    def drawn(self, seen: Observation) -> dict[str, Array]:
        time = seen.clock.seen if self.draw == "each" else 0
        heads = np.arange(len(seen.positions))[:, None]
        positions = seen.positions.astype(np.int64)
        return {"noise": draws(self.seed, seen.layer, heads, positions, time)}

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        return self.drawn(seen)["noise"]  # [Random 1]


@dataclass(frozen=True)
class _Drawing(Method):
    draw: Literal["each", "once"] = "each"
    """When an entry gets its number: at each decision anew, or once for all."""
    seed: int = 0
    """Seed of the draw; layers, heads, entries and decisions draw independently."""

    name = "random"
    source = "the control; no paper"
    published = ""


@dataclass(frozen=True)
class _MatchedControl(_Drawing, Wrapper):
    """Another method with its score replaced: its protection, schedule and budget stay."""

    def policy(self, budget: int | None) -> Policy:
        base, score = self.base.policy(budget), Draw(self.draw, self.seed)
        if base.score.joins_kv_heads:
            score = OneForAllHeads(score, "layer")
        return replace(with_score(base, score), name=f"{self.name}:{base.name}")


@dataclass(frozen=True)
class Random(_Drawing):
    """Evict at random."""

    recent: int = 0
    """Newest entries that are protected."""
    every: int = 1
    """Generated tokens between two evictions."""

    equations = ("Random 1", "Random 2")
    limits = {"seed": 0}
    examples = (Example("random@recent=2"), Example("random@recent=2,draw=once", shared=False))
    compared = ("random", "random@recent=16")
    before_another = _MatchedControl

    def policy(self, budget: int | None) -> Policy:
        score, edges = Draw(self.draw, self.seed), Edges(recent=self.recent)
        return self.composed(score, EveryBlock(self.every), edges, budget)  # [Random 2]
