"""RaaS: the age of the last use (arXiv 2502.11147).

Equations (numbered here; LazyEviction §4 adopts the first):

1. TS_j ← t for every entry with a_tj ≥ α
2. evict the smallest TS
3. page score: Σ_c max(q_c·kmax_c, q_c·kmin_c), over the keys of a page (Quest's bound)
"""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from kvlab.reference.granularity import Pages, WholePages
from kvlab.reference.method import Example, Method, require_budget
from kvlab.reference.notation import Array, Marks, Scores
from kvlab.reference.observation import NO_ATTENTION, Bool, Column, Needs, Observation, State
from kvlab.reference.policy import Edges, EveryDecode, Policy, Score
from kvlab.reference.selection import rank


class Stamp(Score):
    """Generated step at which an entry was last used; entries of the prompt start at 0."""

    columns = {"stamp": Column("generated step of the latest use", integer=True)}

    def observe(self, state: State, seen: Observation) -> State:
        """Stamp the entries that each generated token uses; prompt queries do not count."""
        if seen.clock.prefilling:
            return state
        stamp = state.entries["stamp"].copy()
        for row, position in enumerate(seen.query_positions.tolist()):
            step = position + 1 - seen.clock.prompt
            used = self.used(seen, row, position)
            stamp[used] = step  # [RaaS 1]
        return state.with_entries(stamp=stamp)

    @abstractmethod
    def used(self, seen: Observation, row: int, position: int) -> Marks:
        """Mark the entries that the token at a position uses, whose query is the ``row``-th."""

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        return state.entries["stamp"].astype(float)  # [RaaS 2]


@dataclass(frozen=True)
class LastUse(Stamp):
    """Used is what gets attention of at least the threshold, or the top share of the entries."""

    options: "RaaS"

    @property
    def needs(self) -> Needs:
        return Needs(prompt=False, heads="max" if self.options.share is None else "mean")

    def used(self, seen: Observation, row: int, position: int) -> Marks:
        attention, present = seen.attention[:, :, row], seen.positions <= position
        if self.options.share is None:
            used = attention.max(axis=1) >= self.options.threshold
        else:
            stamped = np.ceil(self.options.share * present.sum(axis=-1, keepdims=True))
            ranks = rank(np.where(present, attention.mean(axis=1), -1.0))
            used = ranks >= present.shape[1] - stamped
        return used & present | (seen.positions == position)


@dataclass(frozen=True)
class PageUse(Stamp):
    """Used are the best pages of consecutive positions, and the one that is being written."""

    page: int
    stamped_pages: int

    needs = NO_ATTENTION

    def used(self, seen: Observation, row: int, position: int) -> Marks:
        pages = seen.positions // self.page
        used = pages == position // self.page
        for g in range(len(pages)):
            begun = seen.positions[g] <= position
            present = np.unique(pages[g][begun])
            bounds = [self.bound(seen, g, row, begun & (pages[g] == page)) for page in present]
            best = present[rank(np.array(bounds)) >= len(present) - self.stamped_pages]
            used[g] |= np.isin(pages[g], best)
        return used

    def bound(self, seen: Observation, g: int, row: int, members: Bool[Array, " n"]) -> float:
        """Upper bound of any unscaled q·k inside a page, maximum over the query group."""
        keys, queries = seen.keys[g, members], seen.queries[g, :, row]
        highest, lowest = keys.max(axis=0), keys.min(axis=0)
        per_channel = np.maximum(queries * highest, queries * lowest)
        return float(per_channel.sum(axis=-1).max())  # [RaaS 3]


@dataclass(frozen=True)
class RaaS(Method):
    """Keep what was used recently; the prompt is pinned."""

    threshold: float = 1e-4
    """Attention α from which on an entry counts as used."""
    share: float | None = None
    """Stamp this share of the entries at every step instead of using the threshold."""
    pin_prompt: bool = True
    """Whether all tokens of the prompt are protected."""
    every: int = 1
    """Generated tokens between two evictions."""
    page: int | None = None
    """Decide over pages of so many positions, as the authors' code does (16); None: entries."""

    name = "raas"
    source = "Hu et al., RaaS: Reasoning-Aware Attention Sparsity, 2502.11147"
    published = "2025-02"
    equations = ("RaaS 1", "RaaS 2", "RaaS 3")
    limits = {"threshold": 0, "page": 1}
    examples = (
        Example("raas@pin_prompt=false,threshold=0.05"),
        Example("raas@pin_prompt=false,threshold=0.0625", 15, shared=False),
        Example("raas@threshold=0.02", 26, shared=False),
        Example("raas@pin_prompt=false,share=0.5,every=5"),
        Example("raas@page=4,pin_prompt=false,every=3", 16, shared=False),
    )
    compared = ("raas", "raas@pin_prompt=false,threshold=0.01")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"share = {self.share} must be above 0 and at most 1")

    def policy(self, budget: int | None) -> Policy:
        budget = require_budget(self.name, budget)
        schedule, protect = EveryDecode(self.every), Edges(prompt=self.pin_prompt)
        if self.page is None:
            return self.composed(LastUse(self), schedule, protect, budget)
        score = PageUse(self.page, stamped_pages=budget // self.page // 2)
        edges, pages = WholePages(protect, self.page), Pages(budget, self.page)
        return Policy(self.name, score, schedule, edges, pages)
