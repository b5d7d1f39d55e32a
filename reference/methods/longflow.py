"""LongFlow: the entry that gave least to the newest output leaves (arXiv 2603.11504).

Equations (numbered here):

1. s_j = 1/(H d) Σ_h a^h_mj ‖v_j‖₁, newest row m: one score for all KV heads of a layer
2. after a prompt above B: the last w stay, and by pool_5(Σ_i Σ_h a^h_ij) of the last w rows i,
   softmax over the others alone, the best of the others
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvlab.reference.checks import check_window
from kvlab.reference.granularity import OneForAllHeads
from kvlab.reference.method import Example, Method, require_budget
from kvlab.reference.observation import Marks, Needs, Observation, Scores, State
from kvlab.reference.policy import AfterPrefillThenEverySeen, Nobody, Policy, Score
from kvlab.reference.windows import among_candidates, mean_pool, remember_queries, window_attention

KERNEL = 5
"""Neighbours of the pooling after the prompt."""


@dataclass(frozen=True)
class Contribution(Score):
    """Length of the weighted value in the newest output; after the prompt, attention of its end."""

    window: int

    @property
    def needs(self) -> Needs:
        return Needs(rows="last", prompt=False, heads="mean", queries=self.window)

    def observe(self, state: State, seen: Observation) -> State:
        if seen.clock.prefilling:
            return remember_queries(state, seen, self.window)
        return State(state.entries)

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        if seen.clock.prefill_ends:
            return self.after_prompt(state, seen, candidates)
        attention = seen.attention[:, :, -1].mean(axis=1)
        return attention * np.abs(seen.values).mean(axis=-1)  # [LongFlow 1]

    def after_prompt(self, state: State, seen: Observation, candidates: Marks) -> Scores:
        """Return infinity for the window, and what it pays the other candidates."""
        older = candidates & (seen.positions < seen.clock.seen - self.window)
        attention = window_attention(state, seen, self.window, older)
        paid = attention.sum(axis=2).mean(axis=1)
        pooled = among_candidates(paid, older, mean_pool, KERNEL, "zero")
        return np.where(older, pooled, np.inf)  # [LongFlow 2]


@dataclass(frozen=True)
class LongFlow(Method):
    """Overwrite the entry whose weighted value contributed least to the newest output."""

    window: int = 32
    """Last queries of the prompt that decide about it; as many entries stay then."""
    heads: Literal["joined", "apart"] = "joined"
    """One choice for all KV heads of a layer, or one in each, as the paper's equation has it."""

    name = "longflow"
    source = "Su et al., LongFlow: Efficient KV Cache Compression, 2603.11504"
    published = "2026-03"
    equations = ("LongFlow 1", "LongFlow 2")
    limits = {"window": 1}
    examples = (
        Example("longflow@window=3"),
        Example("longflow@window=3,heads=apart"),
    )
    compared = ("longflow@window=16", "longflow@window=16,recent=1")

    def policy(self, budget: int | None) -> Policy:
        budget = require_budget(self.name, budget)
        check_window(self.window, budget)
        score = Contribution(self.window)
        score = score if self.heads == "apart" else OneForAllHeads(score, "layer")
        return self.composed(score, AfterPrefillThenEverySeen(1), Nobody(), budget)
