"""TriAttention: keys by their distance to a mean query, as a trigonometric series (2604.04921).

Equations (numbered here); the pair f of channels of a query or key is a complex number:

1. E_f, A_f = mean of q_f and of |q_f| over queries before their rotation
2. S_j = mean over δ = 1, 2, 4, … of Σ_f |E_f| |k_jf| cos(ω_f (t - p_j + δ) + φ_jf), which is k_j
   times the mean of E rotated to t + δ, plus Σ_f (A_f - |E_f|) |k_jf|
3. z_j = S_j less the candidates' mean, over their deviation, largest of the group; mean over layers
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvlab.reference.files import read_statistics
from kvlab.reference.method import Example, Method, require_budget
from kvlab.reference.notation import Array, Marks, RowVectors, Scores
from kvlab.reference.observation import Clock, Float, Needs, Observation, State
from kvlab.reference.policy import Edges, EveryGeneratedBeyond, Policy, Score, crosses
from kvlab.reference.windows import query_statistic

AHEAD = tuple(2**power for power in range(17))
"""Distances δ of the queries to come."""
LEAST = 1e-6
"""Least deviation by which scores are divided."""


@dataclass(frozen=True)
class TrigonometricSeries(Score):
    """What a mean query pays, averaged over distances to come; the first of the prompt stay."""

    options: "TriAttention"

    needs = Needs(rows="none", rotary=True)
    signed = True

    @property
    def joins_layers(self) -> bool:
        return self.options.layers == "joined"

    def observe(self, state: State, seen: Observation) -> State:
        counted = "sums" in state.stream and not seen.clock.prefilling
        if counted or self.options.statistics is not None:
            return state
        queries = seen.rotate(seen.queries, -seen.query_positions)
        rows = [queries, pair_lengths(queries, pairs(seen)), np.ones_like(queries[..., :1])]
        found = np.concatenate(rows, axis=-1).sum(axis=2)
        return state.with_stream(sums=state.stream.get("sums", 0) + found)

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        centre, length = self.statistics(state, seen)
        together = pairs(seen)
        positions = seen.clock.seen + np.array(AHEAD)[:, None, None]
        to_come = seen.rotate(np.tile(centre, (len(AHEAD), 1, 1, 1)), positions).mean(axis=0)
        spread = (length - pair_lengths(centre, together)) / together.sum(axis=0)
        lengths = pair_lengths(seen.keys, together)
        scores = to_come @ seen.keys.mT + spread @ lengths.mT  # [TriAttention 2]
        first = np.zeros(candidates.shape, dtype=bool)
        if self.options.prompt == "cut":
            first = seen.positions < min(seen.clock.prompt, room)
        rated = (candidates & ~first)[:, None]
        means = scores.mean(axis=-1, keepdims=True, where=rated)
        deviations = scores.std(axis=-1, keepdims=True, where=rated)
        z = (scores - means) / np.maximum(deviations, LEAST)
        return np.where(first, np.inf, z.max(axis=1))  # [TriAttention 3]

    def statistics(
        self, state: State, seen: Observation
    ) -> tuple[Float[Array, "G rho d"], Float[Array, "G rho d"]]:
        """Return the mean query, and the mean length of the pair that each channel is in."""
        if (path := self.options.statistics) is not None:
            return query_statistic(path, "mean", seen), query_statistic(path, "length", seen)
        sums = state.stream["sums"]
        mean, length = np.split(sums[..., :-1] / sums[..., -1:], 2, axis=-1)  # [TriAttention 1]
        return mean, length


def pairs(seen: Observation) -> Float[Array, "d d"]:
    """Mark the channels that are rotated together with each channel, itself included."""
    channels = np.eye(seen.keys.shape[-1])
    return (seen.rotate(channels, np.ones(len(channels), dtype=int)) != 0).astype(float)


def pair_lengths(x: RowVectors, together: Float[Array, "d d"]) -> RowVectors:
    """Return for every channel the length of the complex number that it is in."""
    return np.sqrt(x**2 @ together)


@dataclass(frozen=True)
class OnceFull(EveryGeneratedBeyond):
    """Whenever a token is generated and ``every`` entries more than ``start`` are there.

    A prompt that is longer is cut at the first generated token.
    """

    def due(self, clock: Clock) -> bool:
        first = max(self.start, clock.prompt + 1 - self.every)
        before = clock.seen - clock.block
        return not clock.prefilling and crosses(before, clock.seen, self.every, first)


@dataclass(frozen=True)
class TriAttention(Method):
    """Keep the prompt, and the keys to which a mean query attends from distances to come."""

    every: int = 128
    """Entries beyond the budget at which it evicts."""
    layers: Literal["joined", "apart"] = "joined"
    """Whether all layers keep the same entries of a KV head, by the mean of their scores."""
    prompt: Literal["cut", "whole", "free"] = "cut"
    """Whether the prompt stays as far as the budget reaches, is protected, or competes."""
    statistics: str | None = None
    """File of ``kvlab trace --statistics``, as in the paper; none: the prompt's own queries."""

    name = "triattention"
    source = "Mao et al., TriAttention, 2604.04921"
    published = "2026-04"
    equations = tuple(f"TriAttention {number}" for number in range(1, 4))
    limits = {"every": 1}
    examples = (
        Example("triattention@every=3", shared=False),
        Example("triattention@every=3,layers=apart,prompt=free"),
        Example("triattention@every=4,layers=apart"),
    )
    compared = ("triattention@every=16", "triattention@every=16,layers=apart")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.statistics is not None:
            read_statistics(self.statistics)

    def policy(self, budget: int | None) -> Policy:
        budget = require_budget(self.name, budget)
        schedule, edges = OnceFull(self.every, start=budget), Edges(prompt=self.prompt == "whole")
        return self.composed(TrigonometricSeries(self), schedule, edges, budget)
