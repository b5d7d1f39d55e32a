"""OpenVINO GenAI's cache eviction, as its engine decides (2026.4, ``CacheEvictionConfig``).

There is no paper; the rule was taken from the engine's documentation, and its choices were checked
against the engine's own log-probabilities. Equations (numbered here):

1. S_j ← S_j + max over the entries j … j + 6 of Σ_i a_i, attention summed over all heads of a layer
   and over the rows i of a step; of the prompt, or each ``chunk`` of it, over its last ``window``
   rows
2. worth of a block of 32 entries = Σ S_j over the block; under ``norm_sum`` each S_j is first
   divided by the number of rows that were counted for it
3. keep the first ``start`` entries, the last ``recent`` ones in whole blocks, the block that is
   being filled, and the best complete blocks up to ``budget``, the engine's ``max_cache_size``
4. with KVCrush, keep ``crush`` blocks more: mark the half of the entries that have the largest S_j,
   order the blocks that would be evicted by their Hamming distance to a pattern, and take every
   ⌊blocks / crush⌋-th, the nearest first
"""

from dataclasses import dataclass
from heapq import heapify, heappushpop
from typing import Literal

import numpy as np

from kvlab.reference.attention import reduce_group
from kvlab.reference.granularity import OfPages, Pages, WholePages
from kvlab.reference.method import Example, Method, require_budget
from kvlab.reference.notation import Array, Marks, Scores
from kvlab.reference.observation import Bool, Column, Float, Needs, Observation, State
from kvlab.reference.policy import Around, Edges, EveryDecode, Policy, Score
from kvlab.reference.selection import rank

Anchor = Literal["zeros", "ones", "mean", "alternating"]


@dataclass(frozen=True)
class PooledAttention(Score):
    """Attention of all heads so far, each step's share pooled over the entries that follow."""

    options: "OpenVINO"

    columns = {
        "of_prompt": Column("attention received from the prompt"),
        "accumulated": Column("pooled attention received so far"),
    }
    joins_kv_heads = True

    @property
    def needs(self) -> Needs:
        return Needs(heads="sum", sums_rows=not (self.options.window or self.options.chunk))

    def observe(self, state: State, seen: Observation) -> State:
        rows = reduce_group(seen.attention, "sum").sum(axis=0)
        prompt, total = state.entries["of_prompt"], state.entries["accumulated"]
        if seen.clock.prefilling:
            at, chunk = seen.clock.positions, self.options.chunk or seen.clock.prompt
            counted = at >= seen.clock.prompt - (self.options.window or seen.clock.prompt)
            for part in np.unique(at // chunk):
                prompt = prompt + rows[counted & (at // chunk == part)].sum(axis=0)
                if self.options.chunk and (part + 1) * chunk - 1 in at:
                    total, prompt = total + self.pooled(prompt[0], seen), 0 * prompt
            return state.with_entries(of_prompt=prompt, accumulated=total)
        if not seen.clock.generated_before:
            total = total + self.pooled(prompt[0], seen)
        return state.with_entries(accumulated=total + self.pooled(rows.sum(axis=0), seen))

    def pooled(self, received: Float[Array, " n"], seen: Observation) -> Float[Array, " n"]:
        """Return the maximum over each entry and those after it; the first ones get nothing."""
        own = seen.positions[0] >= self.options.start
        counted = np.where(own, received, 0.0)
        beyond = np.concatenate([counted, np.zeros(self.options.pool - 1)])
        windows = np.lib.stride_tricks.sliding_window_view(beyond, self.options.pool)
        return np.where(own, windows.max(axis=1), 0.0)  # [OpenVINO 1]

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

    crush: int

    def places(self, seen: Observation) -> int:
        being_written = self.page if seen.clock.seen % self.page else 0
        more = self.crushed(seen.positions.shape[1]) * self.page
        return super().places(seen) + being_written + more  # [OpenVINO 3]

    def crushed(self, entries: int) -> int:
        """Return how many pages KVCrush keeps that would be evicted: ``crush``, or none."""
        leave = entries // self.page - self.budget // self.page
        return self.crush if leave >= self.crush else 0


def upper_half(scores: Float[Array, " n"]) -> Bool[Array, " n"]:
    """Mark the larger half, ⌊n / 2⌋ entries.

    Maxima over neighbours are often equal. The engine lets a heap of the first half take in the
    others one by one, and of equal ones those are in the half that the heap keeps.
    """
    entries = [[score] for score in scores.tolist()]  # equal ones are told apart by identity
    half = entries[: len(entries) // 2]
    heapify(half)
    for other in entries[len(half) :]:
        heappushpop(half, other)
    chosen = set(map(id, half))
    return np.array([id(entry) in chosen for entry in entries])


@dataclass(frozen=True)
class Crushed(Around):
    """Rates entries 1 that are kept: in the best pages, and in others whose patterns differ."""

    pages: CompletePages
    anchor: Anchor

    ordinal = True

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        worth = self.inner.score(state, seen, candidates, room)[0]
        blocks = np.flatnonzero(candidates[0]).reshape(-1, self.pages.page)
        received, entries = state.entries["accumulated"][0, blocks], seen.positions.shape[1]
        worth[blocks] = self.stay(worth[blocks[:, 0]], received, room, entries)[:, None]
        return np.tile(worth, (len(candidates), 1))

    def stay(
        self, worth: Float[Array, " b"], received: Float[Array, "b page"], room: int, entries: int
    ) -> Bool[Array, " b"]:
        """Mark the best blocks, and of the others each so many-th from the anchor's nearest on."""
        crush = self.pages.crushed(entries)
        kept = rank(worth) >= len(worth) - (room // self.pages.page - crush)
        if crush:
            marked = upper_half(received.ravel()).reshape(received.shape)
            patterns = {"zeros": 0, "ones": 1, "mean": marked.mean(axis=0) > 0.5}
            pattern = patterns.get(self.anchor, np.arange(self.pages.page) % 2)
            others = np.flatnonzero(~kept)
            far = (marked != pattern).sum(axis=1)[others]
            nearest = others[np.argsort(far, kind="stable")]
            kept[nearest[:: len(others) // crush][:crush]] = True  # [OpenVINO 4]
        return kept


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
    chunk: int = 0
    """Tokens of a part of the prompt, which may end within a block; the engine's
    ``max_num_batched_tokens``. 0: the prompt."""
    page: int = 32
    """Entries of a block."""
    pool: int = 7
    """Entries of the maximum; 1: no pooling."""
    crush: int = 0
    """Blocks that KVCrush keeps besides; the engine's ``KVCrushConfig.budget``."""
    anchor: Anchor = "alternating"
    """KVCrush's pattern; the engine's ``anchor_point_mode``, without ``RANDOM``."""

    name = "openvino"
    source = "OpenVINO GenAI 2026.4, CacheEvictionConfig; no paper"
    published = "2024-11"
    equations = ("OpenVINO 1", "OpenVINO 2", "OpenVINO 3", "OpenVINO 4")
    limits = {"page": 1, "pool": 1, "start": 0, "recent": 0, "window": 0, "chunk": 0, "crush": 0}
    examples = (
        Example("openvino@start=1,recent=4,page=1,pool=3,window=3"),
        Example("openvino@start=2,recent=2,page=2,aggregation=sum,pool=2,window=0", shared=False),
    )
    compared = ("openvino@start=16,recent=32,page=16",)

    def policy(self, budget: int | None) -> Policy:
        pages = CompletePages(require_budget(self.name, budget), self.page, self.crush)
        score = OfPages(PooledAttention(self), self.page, "mean")
        score = Crushed(score, pages, self.anchor) if self.crush else score
        edges = WholePages(Edges(self.start, self.recent), self.page)
        return Policy(self.name, score, EveryDecode(), edges, pages)
