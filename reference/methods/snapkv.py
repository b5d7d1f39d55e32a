"""SnapKV: attention of the end of the prompt (arXiv 2404.14469, §4).

Equations (numbered here):

1. u_j = Σ_i a_ij over the last w queries i, softmax over all keys
2. s = pool_κ(u) over the candidates, all entries but the last w
"""

from dataclasses import dataclass
from typing import Literal

from kvlab.reference.checks import check_window
from kvlab.reference.method import Example, Method, require_budget
from kvlab.reference.observation import Marks, Needs, Observation, Scores, State
from kvlab.reference.policy import AfterPrefill, Edges, EveryBlock, Policy, Score
from kvlab.reference.windows import (
    Border,
    among_candidates,
    max_pool,
    mean_pool,
    remember_queries,
    window_attention,
)


@dataclass(frozen=True)
class WindowAttention(Score):
    """Pooled attention of the last ``window`` queries."""

    options: "SnapKV"

    @property
    def needs(self) -> Needs:
        return Needs(rows="none", queries=self.options.window)

    def observe(self, state: State, seen: Observation) -> State:
        return remember_queries(state, seen, self.options.window)

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        attention = window_attention(state, seen, self.options.window)
        looked_at = attention.sum(axis=2).mean(axis=1)  # [SnapKV 1]
        return among_candidates(looked_at, candidates, self.pool)  # [SnapKV 2]

    def pool(self, x: Scores) -> Scores:
        """Smooth over neighbours in the cache."""
        if self.options.pooling == "max":
            return max_pool(x, self.options.kernel)
        return mean_pool(x, self.options.kernel, self.options.border)


@dataclass(frozen=True)
class SnapKV(Method):
    """Compress the prompt once, by the attention of its last tokens."""

    window: int = 64
    """Last queries w that decide; as many newest entries are protected."""
    kernel: int = 5
    """Neighbours κ of the pooling, among the candidates; odd."""
    pooling: Literal["mean", "max"] = "mean"
    """How the scores of neighbours are joined."""
    border: Border = "zero"
    """What lies beyond the border of a mean: zeros, or nothing (``shrink``)."""
    schedule: Literal["after_prefill", "every_block"] = "after_prefill"
    """``after_prefill``: decoding never evicts. ``every_block``: a fixed budget at all times."""
    every: int = 1
    """Generated tokens between two evictions under ``every_block``."""

    name = "snapkv"
    source = "Li et al., SnapKV: LLM Knows What You are Looking for Before Generation, 2404.14469"
    published = "2024-04"
    equations = ("SnapKV 1", "SnapKV 2")
    limits = {"window": 1, "kernel": "odd"}
    examples = (
        Example("snapkv@window=4"),
        Example("snapkv@window=4,schedule=every_block"),
        Example("snapkv@window=3,pooling=max,kernel=7"),
        Example("snapkv@window=3,border=shrink", shared=False),
    )
    compared = ("snapkv@window=16,schedule=every_block",)

    def policy(self, budget: int | None) -> Policy:
        budget = require_budget(self.name, budget)
        check_window(self.window, budget)
        once = self.schedule == "after_prefill"
        schedule = AfterPrefill() if once else EveryBlock(self.every)
        return self.composed(WindowAttention(self), schedule, Edges(recent=self.window), budget)
