"""R-KV: importance minus redundancy (arXiv 2505.24133, §3).

Equations (numbered here):

1. I = maxpool_7 of the mean over the last α_w queries of softmax(max over the group of q·k/√d)
2. C_ij = k̂_i·k̂_j, zero diagonal; the most recent similar token of each row is spared
3. R = softmax of the column means of C
4. Z = λ·I − (1 − λ)·R
"""

from dataclasses import dataclass

import numpy as np

from kvlab.reference.attention import softmax
from kvlab.reference.checks import check_window
from kvlab.reference.method import Example, Method, require_budget
from kvlab.reference.notation import Array, Marks, Scores
from kvlab.reference.observation import Float, Needs, Observation, State
from kvlab.reference.policy import AfterPrefillThenEverySeen, Edges, Policy, Score
from kvlab.reference.windows import among_candidates, max_pool, remember_queries, window_logits


@dataclass(frozen=True)
class ImportanceMinusRedundancy(Score):
    """Attention of the last queries, less the similarity to other keys."""

    options: "RKV"

    @property
    def needs(self) -> Needs:
        return Needs(rows="none", queries=self.options.window)

    signed = True

    def observe(self, state: State, seen: Observation) -> State:
        return remember_queries(state, seen, self.options.window)

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        importance = self.importance(state, seen, candidates)
        redundancy = np.stack([self.redundancy(keys) for keys in seen.keys])
        return self.options.mix * importance - (1 - self.options.mix) * redundancy  # [R-KV 4]

    def importance(self, state: State, seen: Observation, candidates: Marks) -> Scores:
        """Pooled attention of the last queries; the group is reduced on logits, by maximum."""
        raw, _ = window_logits(state, seen, self.options.window)
        attention = softmax(raw.max(axis=1), candidates[:, None, :])
        paid, kernel = attention.mean(axis=1), self.options.kernel
        return among_candidates(paid, candidates, max_pool, kernel)  # [R-KV 1]

    def redundancy(self, keys: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return how similar each key of one head is to the other keys."""
        unit = keys / (np.linalg.norm(keys, axis=-1, keepdims=True) + 1e-8)
        cosine = unit @ unit.T
        np.fill_diagonal(cosine, 0.0)
        for row in cosine:
            similar = np.flatnonzero(row > self.options.similarity)
            if len(similar):
                row[similar[-1]] = 0.0  # [R-KV 2]
            elif self.options.first_column_quirk:
                row[0] = 0.0
        return softmax(cosine.mean(axis=0))  # [R-KV 3]


@dataclass(frozen=True)
class RKV(Method):
    """Keep entries that are important and not redundant."""

    mix: float = 0.07
    """Weight λ of importance."""
    window: int = 8
    """Last queries that decide; as many newest entries are protected."""
    kernel: int = 7
    """Neighbours of the max pooling, among the candidates; odd."""
    similarity: float = 0.5
    """Cosine T from which on two keys count as similar."""
    every: int = 128
    """Tokens seen between two evictions."""
    first_column_quirk: bool = False
    """Spare the first entry where a key is similar to none, as the authors' code does."""

    name = "rkv"
    source = "Cai et al., R-KV: Redundancy-aware KV Cache Compression, 2505.24133"
    published = "2025-05"
    equations = ("R-KV 1", "R-KV 2", "R-KV 3", "R-KV 4")
    limits = {"window": 1, "every": 1, "kernel": "odd", "mix": (0, 1)}
    examples = (
        Example("rkv@every=6,window=3"),
        Example("rkv@every=6,window=3,mix=0.5,similarity=0.2", shared=False),
    )
    compared = ("rkv@every=16",)

    def policy(self, budget: int | None) -> Policy:
        budget = require_budget(self.name, budget)
        check_window(self.window, budget)
        schedule, edges = AfterPrefillThenEverySeen(self.every), Edges(recent=self.window)
        return self.composed(ImportanceMinusRedundancy(self), schedule, edges, budget)
