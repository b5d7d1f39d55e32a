"""VaSE: values of extreme range stay, the rest is sampled (arXiv 2606.03928).

Equations (numbered here):

1. x_j = max_c v_jc - min_c v_jc; the first 4 tokens count as larger than all
2. a_j = mean over the group of pool_5 of the mean over the last r rows of softmax(q·k/√d), over the
   candidates alone
3. P = the n_L candidates with the largest x; M - n_L of the others are drawn without replacement,
   with probability ∝ a: those with the largest a_j / e_j, e_j exponential
4. in the variant without attention, s_j = ‖k_j Γ‖² ‖v_j Γ‖² for Γ of 20 normal columns
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kvlab.reference.checks import check_window
from kvlab.reference.method import Example, Method, require_budget
from kvlab.reference.methods.random import BITS, Draw, draws
from kvlab.reference.methods.random_attention import SCHEDULES, Counted
from kvlab.reference.notation import Array, Marks, Scores
from kvlab.reference.observation import NO_ATTENTION, Float, Needs, Observation, State
from kvlab.reference.policy import Edges, Policy, Score
from kvlab.reference.selection import rank
from kvlab.reference.windows import among_candidates, mean_pool, remember_queries, window_attention

KERNEL = 5
"""Neighbours of the pooling."""
COLUMNS = 20
"""Columns of the random projection Γ."""


@dataclass(frozen=True)
class LargeValuesAndSample(Score):
    """Values of extreme range, then a draw without replacement by attention."""

    draw: Draw
    window: int
    first: int
    large: int
    """Entries that are kept for their values."""
    size: str = "range"

    ordinal = True

    @property
    def needs(self) -> Needs:
        return Needs(rows="none", queries=self.window)

    def drawn(self, seen: Observation) -> dict[str, Array]:
        return self.draw.drawn(seen)

    def observe(self, state: State, seen: Observation) -> State:
        return remember_queries(state, seen, self.window)

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        spread = np.where(seen.positions < self.first, np.inf, largeness(seen.values, self.size))
        places = rank(np.where(candidates, spread, -np.inf))
        waiting = np.maximum(-np.log1p(-self.drawn(seen)["noise"]), 2.0**-BITS)
        sampled = self.attention(state, seen, candidates) / waiting
        return np.where(places >= places.shape[1] - self.large, np.inf, sampled)  # [VaSE 3]

    def attention(self, state: State, seen: Observation, candidates: Marks) -> Scores:
        """Return what the last queries pay the candidates, smoothed over neighbours."""
        paid = window_attention(state, seen, self.window, candidates).mean(axis=(1, 2))
        return among_candidates(paid, candidates, mean_pool, KERNEL, "zero")  # [VaSE 2]


def largeness(values: Float[Array, "*rows d"], size: str) -> Float[Array, "*rows"]:
    """Return how large values are: their range over the channels, or an ablation of it."""
    if size == "length":
        return np.linalg.norm(values, axis=-1)
    if size == "variance":
        return values.var(axis=-1)
    return np.ptp(values, axis=-1)  # [VaSE 1]


@dataclass(frozen=True)
class ProjectedNorms(Score):
    """Lengths of key and value after a random projection, which all heads of a layer share."""

    draw: Draw
    first: int

    needs = NO_ATTENTION

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        d = seen.keys.shape[-1]
        columns = projection(d, self.draw.seed, seen.layer, seen.clock.seen)
        lengths = [((each @ columns) ** 2).sum(axis=-1) for each in (seen.keys, seen.values)]
        products = lengths[0] * lengths[1]  # [VaSE 4]
        shares = products / products.sum(axis=-1, keepdims=True)
        return np.where(seen.positions < self.first, 1.0, shares)


def projection(d: int, seed: int, layer: Any, time: Any) -> Array:
    """Return Γ ``[d, 20]``: normal draws of variance 1/20, by Box and Muller."""
    rows, columns = np.arange(d)[:, None], np.arange(COLUMNS)
    one, other = (draws(seed, layer, rows, columns, half, time) for half in (1, 2))
    return np.sqrt(-2 * np.log1p(-one) / COLUMNS) * np.cos(2 * np.pi * other)


@dataclass(frozen=True)
class VaSE(Method):
    """Keep values of extreme range, and sample the rest by attention."""

    recent: int = 64
    """Newest entries r that are protected, queries that decide, tokens between two evictions."""
    large: float = 0.25
    """Share of the budget that is kept for values of extreme range."""
    size: Literal["range", "length", "variance"] = "range"
    """What makes a value large, over its channels: the range, as in the code, or an ablation."""
    first: int = 4
    """First tokens of the text, which count as the largest."""
    rated_by: Literal["attention", "norms"] = "attention"
    """What the sample is weighted with: attention, or (variant DKV) norms, without a sample."""
    counted: Counted = "beyond"
    """Entries that are counted from one eviction to the next: those ``beyond`` the budget, until
    they are r; ``all``, until they are a multiple of r, as in the authors' cache. Their program
    refuses budgets that are no multiple of r, and for the others both are the same."""
    seed: int = 0
    """Seed of the draw; layers, heads, entries and decisions draw independently."""

    name = "vase"
    source = "Chang et al., Value-Aware Stochastic KV Cache Eviction, 2606.03928"
    published = "2026-06"
    equations = ("VaSE 1", "VaSE 2", "VaSE 3", "VaSE 4")
    limits = {"recent": 1, "first": 0, "seed": 0, "large": (0, 1)}
    examples = (
        Example("vase@recent=3,first=1"),
        Example("vase@recent=3,rated_by=norms,first=1"),
    )
    compared = ("vase@recent=16",)

    def policy(self, budget: int | None) -> Policy:
        budget = require_budget(self.name, budget)
        check_window(self.recent, budget)
        draw, large = Draw("each", self.seed), int(self.large * budget)
        if large > budget - self.recent:
            raise ValueError(
                f"large = {self.large} of budget = {budget} must leave recent = {self.recent}"
            )
        score = LargeValuesAndSample(draw, self.recent, self.first, large, self.size)
        score = score if self.rated_by == "attention" else ProjectedNorms(draw, self.first)
        schedule = SCHEDULES[self.counted](self.recent, start=budget)
        return self.composed(score, schedule, Edges(recent=self.recent), budget)
