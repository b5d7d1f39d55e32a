"""AhaKV: sharpened recent attention, weighted by values (arXiv 2506.03762).

The paper itself was not at hand. Its equations, as its summaries number them: 5 (recent
accumulation), 12 (λ of the step-gain softmax: it takes the place of 1/√d, so the usual logits are
multiplied by λ√d), 13-15 (value prior).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvlab.reference.attention import softmax, visible
from kvlab.reference.method import Example, Method, require_budget
from kvlab.reference.notation import Array, Marks, Scores, Vectors, WindowLogits, WindowQueries
from kvlab.reference.observation import Bool, Column, Float, Int, Needs, Observation, State
from kvlab.reference.policy import Edges, EveryBlock, Policy, Score
from kvlab.reference.windows import Border, mean_pool, remember_queries


def spread(raw: WindowLogits, mask: Bool[Array, "G rho w n"]) -> Float[Array, "G rho w 1"]:
    """Standard deviation of each row's visible logits."""
    count = mask.sum(axis=-1, keepdims=True)
    mean = np.where(mask, raw, 0.0).sum(axis=-1, keepdims=True) / count
    variance = np.where(mask, (raw - mean) ** 2, 0.0).sum(axis=-1, keepdims=True) / count
    return np.sqrt(variance)


@dataclass(frozen=True)
class SharpenedRecentAttention(Score):
    """Step-gain attention of recent rows times the value prior.

    The step-gain softmax is sharper the more tokens compete for k places: λ = √(2·ln(i/k)/d)
    replaces 1/√d, so the usual scaled logits are multiplied by λ√d.
    """

    options: "AhaKV"
    target: int
    """Entries k that should share the attention."""

    @property
    def needs(self) -> Needs:
        last = self.options.recent if self.options.accumulation == "recent" else None
        return Needs(rows="none", queries=last)

    @property
    def columns(self) -> dict[str, Column]:
        """Only the ablation without recent accumulation needs a sum per entry."""
        sums = {"accumulated": Column("sharpened attention received so far")}
        return sums if self.options.accumulation == "all" else {}

    def observe(self, state: State, seen: Observation) -> State:
        if self.options.accumulation == "recent":
            return remember_queries(state, seen, self.options.recent)
        rows = self.sharpened(seen.queries, seen.query_positions, seen)
        return state.with_entries(
            accumulated=state.entries["accumulated"] + rows.sum(axis=2).mean(axis=1)
        )

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        prior = self.prior(seen.values)
        return prior * self.accumulated(state, seen)  # [AhaKV 15]

    def accumulated(self, state: State, seen: Observation) -> Scores:
        """S, summed over the same number of rows for every candidate."""
        if self.options.accumulation == "all":
            return state.entries["accumulated"]
        queries, positions = state.stream["queries"], state.stream["query_positions"]
        rows = self.sharpened(queries, positions, seen)
        return rows.sum(axis=2).mean(axis=1)  # [AhaKV 5]

    def sharpened(
        self, queries: WindowQueries, positions: Int[Array, " w"], seen: Observation
    ) -> WindowLogits:
        """Sharpened attention of these queries over all present entries."""
        raw = seen.logits(queries)
        mask = np.broadcast_to(visible(positions, seen.positions), raw.shape)
        return softmax(raw * self.factors(raw, mask, positions, seen), mask)

    def factors(
        self,
        raw: WindowLogits,
        mask: Bool[Array, "G rho w n"],
        positions: Int[Array, " w"],
        seen: Observation,
    ) -> Float[Array, "#G #rho w 1"]:
        """Gain on the usual logits of each row; 1 where no more than k tokens compete."""
        if self.options.gain == "none":
            return np.ones((1, 1, len(positions), 1))
        competing = positions + 1.0
        decoding = positions >= seen.clock.prompt
        if self.options.gain_in_decode == "cache":
            competing = np.where(decoding, seen.positions.shape[1], competing)
        elif self.options.gain_in_decode == "none":
            competing = np.where(decoding, self.target, competing)
        d = seen.queries.shape[-1]
        excess = np.maximum(competing / self.target, 1.0)
        lam = np.sqrt(2 * np.log(excess) / d)  # [AhaKV 12]
        gain = (self.options.gain_factor * lam * np.sqrt(d))[None, None, :, None]
        if self.options.gain == "measured":
            deviation = spread(raw, mask)
            flat = deviation <= 1e-12 * np.abs(raw).max(axis=-1, keepdims=True)
            gain = np.where(flat, 1.0, gain / np.where(flat, 1.0, deviation))
        gain = np.maximum(gain, self.options.gain_floor)
        return np.where((excess > 1)[None, None, :, None], gain, 1.0)

    def prior(self, values: Vectors) -> Scores:
        """Smoothed value norms, relative to the largest; 1 if all are zero."""
        if self.options.value_prior == "none":
            return np.ones(values.shape[:2])
        norm = np.linalg.norm(values, axis=-1)
        size = norm**2 if self.options.value_prior == "squared" else norm
        smoothed = mean_pool(size, self.options.kernel, self.options.border)  # [AhaKV 13]
        largest = smoothed.max(axis=-1, keepdims=True)
        ones = np.ones_like(smoothed)
        return np.divide(smoothed, largest, out=ones, where=largest > 0)  # [AhaKV 14]


@dataclass(frozen=True)
class AhaKV(Method):
    """Rate every candidate by the same number of recent rows, sharpened, times its value's size."""

    recent: int = 32
    """Newest entries B_r that are protected; as many rows r are summed."""
    sinks: int = 0
    """First tokens of the text that are protected."""
    gain: Literal["step", "measured", "none"] = "step"
    """``measured``: divide by the row's own standard deviation, over the count of its logits;
    ``none``: ordinary softmax."""
    gain_in_decode: Literal["absolute", "cache", "none"] = "absolute"
    """What i is while decoding: the position, the entries present, or k (no gain)."""
    gain_factor: float = 1.0
    """Factor on λ."""
    gain_floor: float = 0.0
    """Least gain where more than k tokens compete; 1: never flatter than the model."""
    accumulation: Literal["recent", "all"] = "recent"
    """``recent``: the last r rows; ``all``: every row since the entry was written."""
    value_prior: Literal["squared", "norm", "none"] = "squared"
    """Factor on the sum: the squared norm of the value, its norm, or none."""
    kernel: int = 5
    """Neighbours κ over which the prior is smoothed; odd."""
    border: Border = "shrink"
    """What lies beyond the border of that mean: nothing (``shrink``), or zeros."""
    every: int = 1
    """Generated tokens between two evictions."""

    name = "ahakv"
    source = "Gu et al., AhaKV: Adaptive Holistic Attention-Driven KV Cache Eviction, 2506.03762"
    published = "2025-06"
    equations = ("AhaKV 5", "AhaKV 12", "AhaKV 13", "AhaKV 14", "AhaKV 15")
    limits = {"recent": 1, "gain_factor": 0, "gain_floor": 0, "kernel": "odd"}
    examples = (
        Example("ahakv@recent=3"),
        Example("ahakv@recent=3,accumulation=all"),
        Example("ahakv@recent=3,gain=measured,sinks=2"),
        Example("ahakv@recent=3,value_prior=norm", shared=False),
    )
    compared = ("ahakv@recent=16",)
    variants = {
        "ahakv-sg": "ahakv@gain=none",
        "ahakv-ra": "ahakv@accumulation=all",
        "ahakv-vp": "ahakv@value_prior=none",
    }

    def policy(self, budget: int | None) -> Policy:
        budget = require_budget(self.name, budget)
        edges = Edges(self.sinks, self.recent)
        score = SharpenedRecentAttention(self, budget)
        return self.composed(score, EveryBlock(self.every), edges, budget)
