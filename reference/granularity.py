"""What is evicted together: a page, an entry in all KV heads of a layer, or in all layers.

Engines keep the cache in pages of some 16 tokens and can only free a page that no head reads any
more. Here a page is a run of consecutive positions, p·page to (p + 1)·page − 1. The rules of a
method are applied as before; then the answers are joined over the page, or over the heads.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

import numpy as np

from kvlab.reference.checks import check_protected
from kvlab.reference.observation import Array, Float, Int, Marks, Observation, Scores, State
from kvlab.reference.policy import Around, Budget, Edges, Policy, Protect, Score
from kvlab.reference.selection import rank

PageScore = Literal["mean", "max"]
KVHeads = Literal["head", "layer", "union", "model"]


@dataclass(frozen=True)
class OneForAllHeads(Around):
    """One score of an entry for all KV heads of a layer, so that all keep the same entries."""

    join: Literal["layer", "union"]
    """``layer``: the mean of the heads' scores. ``union``: the best rank that any head gives the
    entry, 0 for the best entry of a head, then -1, -2, ...: the heads' best entries are kept in
    turns until the room is full."""

    joins_kv_heads = True

    @property
    def ordinal(self) -> bool:
        return self.inner.ordinal or self.join == "union"

    @property
    def signed(self) -> bool:
        return self.inner.signed or self.join == "union"

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        scores = self.inner.score(state, seen, candidates, room)
        if self.join == "union":
            places = rank(np.where(candidates, scores, -np.inf)) - (scores.shape[1] - 1)
            joined = places.max(axis=0).astype(float)
        else:
            joined = scores.mean(axis=0)
        return np.tile(joined, (len(scores), 1))


@dataclass(frozen=True)
class OneForAllLayers(Around):
    """The same entries in all layers, by the mean of their scores.

    `kvlab.reference.step.apply_together` takes the mean.
    """

    joins_layers = True

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        return self.inner.score(state, seen, candidates, room)


@dataclass(frozen=True)
class OfPages(Around):
    """Gives each entry the score of its page."""

    page: int
    join: PageScore

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        scores = self.inner.score(state, seen, candidates, room)
        pages = seen.positions // self.page
        return np.stack([self.joined(*head) for head in zip(scores, pages, strict=True)])

    def joined(self, scores: Float[Array, " n"], pages: Int[Array, " n"]) -> Float[Array, " n"]:
        """Return each entry's share in the mean, or the maximum, of its page."""
        if self.join == "max":
            worth = np.full(pages.max() + 1, -np.inf)
            np.maximum.at(worth, pages, scores)
        else:
            members = np.maximum(np.bincount(pages), 1)
            worth = np.bincount(pages, weights=scores) / members
        return worth[pages]


@dataclass(frozen=True)
class WholePages(Protect):
    """Protects the page that is being written, and every page that holds a protected entry."""

    inner: Protect
    page: int

    def protected(self, seen: Observation) -> Marks:
        pages = seen.positions // self.page
        newest = pages == (seen.clock.seen - 1) // self.page
        heads = zip(pages, self.inner.protected(seen), strict=True)
        return newest | np.stack([np.isin(head, head[protected]) for head, protected in heads])

    def with_edges(self, edges: Edges) -> "WholePages":
        return WholePages(self.inner.with_edges(edges), self.page)

    def replaced(self, choice: Protect) -> "WholePages":
        return WholePages(self.inner.replaced(choice), self.page)

    def count(self, prompt: int) -> int:
        """Return the entries of as many pages as the protected entries can touch.

        If the inner protection is not `Edges`, this is the least number of pages that they fill.
        """
        if not isinstance(self.inner, Edges):
            return -(-self.inner.count(prompt) // self.page) * self.page
        first = -(-self.inner.first(prompt) // self.page)
        newest = -(-max(0, self.inner.recent - 1) // self.page) + 1
        return (first + newest) * self.page


@dataclass(frozen=True)
class Pages(Budget):
    """As many whole pages as ``budget`` entries fill; a page that is being written counts whole."""

    budget: int
    page: int

    def room(self, seen: Observation, protected: Marks) -> int:
        pages = seen.positions // self.page
        protected_pages = max(len(np.unique(row[protected[g]])) for g, row in enumerate(pages))
        places = self.places(seen)
        check_protected(places, protected_pages * self.page)
        return places - protected_pages * self.page

    def places(self, seen: Observation) -> int:
        """Return how many entries the kept pages have room for."""
        return self.budget // self.page * self.page

    def check(self, protect: Protect, prompt: int) -> None:
        """Raise ValueError if the budget holds fewer than two pages or less than is protected."""
        protected = protect.count(prompt)
        least = max(2, ceil(protected / self.page)) * self.page
        if self.budget < least:
            raise ValueError(
                f"budget = {self.budget} must be at least {least} with page = {self.page}: two "
                f"pages of {self.page}, and room for the {protected} entries of the pages that "
                "hold a protected entry"
            )


def with_score(policy: Policy, score: Score) -> Policy:
    """Replace the score of a policy: pages and layers that decided together still do."""
    if isinstance(policy.budget, Pages):
        score = OfPages(score, policy.budget.page, "mean")
    if policy.score.joins_layers and not score.joins_layers:
        score = OneForAllLayers(score)
    return replace(policy, score=score)
