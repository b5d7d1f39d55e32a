"""OpenVINO GenAI's cache eviction, as its engine decides (2026.4, ``CacheEvictionConfig``).

There is no paper; the rule was taken from the engine's documentation, and its choices were checked
against the engine's own log-probabilities. Equations (numbered here):

1. S_j ← S_j + max over the entries j … j + 6 of Σ_i a_i, attention summed over all heads of a layer
   and over the rows i of a step; of the prompt, over its last ``window`` rows
2. worth of a block of 32 entries = Σ S_j over the block; under ``norm_sum`` each S_j is first
   divided by the number of rows that were counted for it
3. keep the first ``start`` entries, the last ``recent`` ones in whole blocks, the block that is
   being filled, and the best complete blocks up to ``budget``, the engine's ``max_cache_size``
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from kvlab.reference.attention import reduce_group
from kvlab.reference.cache import Column, State
from kvlab.reference.checks import check_at_least
from kvlab.reference.granularity import OfPages, Pages, WholePages
from kvlab.reference.method import Example, Method, require_budget
from kvlab.reference.notation import Array, Marks, Scores
from kvlab.reference.observation import Observation
from kvlab.reference.policy import Edges, EveryDecode, Needs, Policy, Score


@dataclass(frozen=True)
class PooledAttention(Score):
    """Attention of all heads so far, each step's share pooled over the entries that follow."""

    options: "OpenVINO"

    joins_kv_heads = True

    @property
    def columns(self) -> dict[str, Column]:
        return {
            "of_prompt": Column("attention received from the prompt"),
            "accumulated": Column("pooled attention received so far"),
        }

    @property
    def needs(self) -> Needs:
        return Needs(heads="sum", sums_rows=not self.options.window)

    def observe(self, state: State, seen: Observation) -> State:
        rows = reduce_group(seen.attention, "sum").sum(axis=0)
        prompt, total = state.entries["of_prompt"], state.entries["accumulated"]
        if seen.clock.prefilling:
            last = seen.clock.prompt - (self.options.window or seen.clock.prompt)
            counted = rows[seen.clock.positions >= last].sum(axis=0)
            return state.with_entries(of_prompt=prompt + counted)
        if not seen.clock.generated_before:
            total = total + self.pooled(prompt[0], seen)
        return state.with_entries(accumulated=total + self.pooled(rows.sum(axis=0), seen))

    def pooled(self, received: Float[Array, " n"], seen: Observation) -> Float[Array, " n"]:
        """Return the maximum over each entry and those after it; the first ones get nothing."""
        counted = np.where(seen.positions[0] >= self.options.start, received, 0.0)
        beyond = np.concatenate([counted, np.zeros(self.options.pool - 1)])
        windows = np.lib.stride_tricks.sliding_window_view(beyond, self.options.pool)
        return np.where(
            seen.positions[0] >= self.options.start, windows.max(axis=1), 0.0
        )  # [OpenVINO 1]

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        total = state.entries["accumulated"]
        if self.options.aggregation == "sum":
            return total
        counted = seen.clock.seen - seen.positions
        if self.options.window:
            counted = np.minimum(counted, self.options.window + seen.clock.generated)
        return total / counted  # [OpenVINO 2]


@dataclass(frozen=True)
class CompletePages(Pages):
    """As many complete pages as ``budget`` entries fill, and the page that is being written."""

    def places(self, seen: Observation) -> int:
        being_written = self.page if seen.clock.seen % self.page else 0
        return super().places(seen) + being_written  # [OpenVINO 3]


@dataclass(frozen=True)
class OpenVINO(Method):
    """Evict whole blocks by their attention, the same positions in all heads of a layer."""

    start: int = 32
    """First entries that are protected; the engine's ``start_size``, which must fill blocks."""
    recent: int = 128
    """Newest entries that are protected; the engine's ``recent_size``, which must fill blocks."""
    aggregation: Literal["sum", "norm_sum"] = "norm_sum"
    """The engine's mode: ``sum``; ``norm_sum`` divides by the rows that were counted."""
    window: int = 8
    """Last rows of the prompt that are counted; the engine's ``snapkv_window_size``. 0: all."""
    page: int = 32
    """Entries of a block."""
    pool: int = 7
    """Entries of the maximum; 1: no pooling."""

    name = "openvino"
    source = "OpenVINO GenAI 2026.4, CacheEvictionConfig; no paper"
    published = "2024-11"
    equations = ("OpenVINO 1", "OpenVINO 2", "OpenVINO 3")
    examples = (
        Example("openvino@start=1,recent=4,page=1,pool=3,window=3"),
        Example("openvino@start=2,recent=2,page=2,aggregation=sum,pool=2,window=0", shared=False),
    )
    compared = ("openvino@start=16,recent=32,page=16",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, page=self.page, pool=self.pool)
        check_at_least(0, start=self.start, recent=self.recent, window=self.window)

    def policy(self, budget: int | None) -> Policy:
        return Policy(
            self.name,
            OfPages(PooledAttention(self), self.page, "mean"),
            EveryDecode(),
            WholePages(Edges(self.start, self.recent), self.page),
            CompletePages(require_budget(self.name, budget), self.page),
        )
