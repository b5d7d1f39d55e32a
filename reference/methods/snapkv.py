"""SnapKV: what the end of the prompt looks at (arXiv 2404.14469, §4).

Equations (numbered here):

1. u_j = Σ_i a_ij over the last w queries i, softmax over all keys
2. s = pool_κ(u) over the candidates, all entries but the last w
"""

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Bool, Float

from kvlab.reference.cache import State
from kvlab.reference.method import Divergence, Method, require_budget
from kvlab.reference.notation import Array
from kvlab.reference.policy import (
    NO_ATTENTION,
    AfterPrefill,
    Edges,
    Entries,
    EveryBlock,
    Full,
    Observation,
    Policy,
    Score,
    check_at_least,
)
from kvlab.reference.windows import (
    Border,
    among_candidates,
    check_choice,
    check_kernel,
    max_pool,
    mean_pool,
    remember_queries,
    window_attention,
)


@dataclass(frozen=True)
class WindowAttention(Score):
    """Pooled attention of the last ``window`` queries."""

    window: int
    kernel: int
    pooling: Literal["mean", "max"]
    border: Border

    needs = NO_ATTENTION

    def observe(self, state: State, seen: Observation) -> State:
        """Remember the last queries, across blocks."""
        return remember_queries(state, seen, self.window)

    def score(
        self, state: State, seen: Observation, candidates: Bool[Array, "G n"], room: int
    ) -> Float[Array, "G n"]:
        """Pool what the window's queries look at."""
        attention = window_attention(state, seen, self.window)
        looked_at = attention.sum(axis=2).mean(axis=1)  # [SnapKV 1]
        return among_candidates(looked_at, candidates, self.pool)  # [SnapKV 2]

    def pool(self, x: Float[Array, "G k"]) -> Float[Array, "G k"]:
        """Smooth over neighbours in the cache."""
        if self.pooling == "max":
            return max_pool(x, self.kernel)
        return mean_pool(x, self.kernel, self.border)


@dataclass(frozen=True)
class SnapKV(Method):
    """Compress the prompt once, by the attention of its last tokens."""

    window: int = 64
    """Last queries w that decide; as many newest entries are safe."""
    kernel: int = 5
    """Neighbours κ of the pooling; odd."""
    pooling: Literal["mean", "max"] = "mean"
    """What is taken of the neighbours."""
    border: Border = "zero"
    """What lies beyond the border of a mean: zeros, or nothing (``shrink``)."""
    schedule: Literal["after_prefill", "every_block"] = "after_prefill"
    """``after_prefill``: decoding never evicts. ``every_block``: a fixed budget at all times."""
    every: int = 1
    """Generated tokens between two evictions under ``every_block``."""

    name = "snapkv"
    source = "Li et al., SnapKV: LLM Knows What You are Looking for Before Generation, 2404.14469"
    equations = ("SnapKV 1", "SnapKV 2")
    divergences = (
        Divergence(
            topic="decoding",
            paper="never evicts: the cache grows from the budget",
            elsewhere="CAOTE compares it under a fixed budget",
            default="never evicts",
            option="snapkv@schedule=every_block",
        ),
        Divergence(
            topic="pooling",
            paper="code: mean over 5, window 64",
            elsewhere="the authors' LongBench set-up: max over 7, window 32; R-KV: window 8",
            default="mean over 5, window 64",
            option="snapkv@pooling=max,kernel=7,window=32",
        ),
        Divergence(
            topic="borders of the mean",
            paper="zeros, always divided by κ: the first token loses 2/5 of its mass at κ = 5",
            elsewhere="kvpress and KVCache-Factory do the same",
            default="zeros",
            option="snapkv@border=shrink",
        ),
        Divergence(
            topic="heads",
            paper="code decides per query head on an expanded cache",
            elsewhere="kvpress: per KV head, pooled before the mean",
            default="per KV head, mean before pooling",
            option="generate(query_heads=True)",
        ),
    )

    def __post_init__(self) -> None:
        check_at_least(1, window=self.window)
        check_kernel(self.kernel)
        check_choice(("mean", "max"), pooling=self.pooling)
        check_choice(("zero", "shrink"), border=self.border)
        check_choice(("after_prefill", "every_block"), schedule=self.schedule)

    def policy(self, budget: int | None) -> Policy:
        """Protect the window, keep the best of the rest.

        Raises:
            ValueError: unless window < budget.
        """
        budget = require_budget(self.name, budget)
        if self.window >= budget:
            raise ValueError(f"window = {self.window} must be smaller than budget = {budget}")
        once = self.schedule == "after_prefill"
        return Policy(
            self.name,
            WindowAttention(self.window, self.kernel, self.pooling, self.border),
            AfterPrefill() if once else EveryBlock(self.every),
            Edges(recent=self.window),
            Entries(budget),
            Full(),
        )
