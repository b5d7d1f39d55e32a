"""TOVA: token omission via attention (arXiv 2401.06104, §3.2).

Equations (numbered here; CAOTE §2 prints the score as f_j = A_{-1,j}):

1. s_j = (1/H) Σ_h a^h_{mj}: attention of the block's last query, mean over all query heads
"""

from dataclasses import dataclass

import numpy as np

from kvlab.reference.method import Example, Method
from kvlab.reference.observation import Array, Float, Marks, Needs, Observation, Scores, State
from kvlab.reference.policy import EveryBlock, Nobody, Policy, Score


@dataclass(frozen=True)
class LastRowAttention(Score):
    """Attention that the newest token pays."""

    options: "TOVA"

    needs = Needs(rows="last", heads="mean")

    @property
    def joins_kv_heads(self) -> bool:
        return not self.options.per_head

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        last_row = self.retention(state, seen, candidates)
        if self.options.per_head:
            return last_row.mean(axis=1)
        shared = last_row.mean(axis=(0, 1))  # [TOVA 1]
        return np.tile(shared, (len(last_row), 1))

    def retention(
        self, state: State, seen: Observation, candidates: Marks
    ) -> Float[Array, "G rho n"]:
        """Return each query head's own row: a distribution, as CAOTE's theorem needs it."""
        return seen.attention[:, :, -1, :]


@dataclass(frozen=True)
class TOVA(Method):
    """Evict the entry with the least attention of the newest token; no entry is protected."""

    every: int = 1
    """Generated tokens between two evictions."""
    per_head: bool = False
    """Let every KV head keep its own entries instead of one keep set per layer."""

    name = "tova"
    source = "Oren et al., Transformers are Multi-State RNNs, 2401.06104"
    published = "2024-01"
    equations = ("TOVA 1",)
    examples = (Example("tova"), Example("tova@per_head=true"), Example("tova@every=5"))
    compared = ("tova", "tova@per_head=true")

    def policy(self, budget: int | None) -> Policy:
        return self.composed(LastRowAttention(self), EveryBlock(self.every), Nobody(), budget)
