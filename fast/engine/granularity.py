"""Entries that leave together, in tensors. Mirrors `kvlab.reference.granularity`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from kvlab.fast.engine.cache import State
from kvlab.fast.engine.notation import Candidates, Marks, PerEntry, Room, Scores
from kvlab.fast.engine.observation import Needs, Observation
from kvlab.fast.engine.policy import Budget, Edges, Protect, Score, twin_of
from kvlab.fast.engine.selection import in_ascending_position, rank
from kvlab.reference import granularity as reference
from kvlab.reference.cache import Column
from kvlab.reference.checks import check_protected
from kvlab.reference.granularity import PageScore
from kvlab.reference.observation import Clock


@dataclass(frozen=True)
class Joined(Score):
    """A score whose answers are joined; it observes and remembers what the inner score does."""

    inner: Score

    @property
    def couples_heads(self) -> bool:
        return self.inner.couples_heads

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    @property
    def columns(self) -> Mapping[str, Column]:
        return self.inner.columns

    def observe(self, state: State, seen: Observation) -> None:
        self.inner.observe(state, seen)


@twin_of(reference.OneForAllHeads)
@dataclass(frozen=True)
class OneForAllHeads(Joined):
    """One score of an entry for all KV heads of a layer, so that all keep the same entries."""

    join: Literal["layer", "union"]

    @property
    def couples_heads(self) -> bool:
        return True

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        scores = self.inner.score(state, seen, candidates, room)
        if self.join == "layer":
            return scores.mean(dim=1, keepdim=True)
        scores = scores.expand_as(seen.positions)
        may_leave = seen.present if candidates is None else candidates & seen.present
        scores, into_slots = in_ascending_position(
            scores.masked_fill(~may_leave, -torch.inf), seen.positions, seen.cache.ordered
        )
        places = into_slots(rank(scores)) - (scores.shape[-1] - 1)
        return places.amax(dim=1, keepdim=True).to(scores.dtype)


@twin_of(reference.OfPages)
@dataclass(frozen=True)
class OfPages(Joined):
    """Gives each entry the score of its page."""

    page: int
    join: PageScore

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        scores = self.inner.score(state, seen, candidates, room).expand_as(seen.positions)
        how = "amax" if self.join == "max" else "mean"
        return over_pages(scores, seen, self.page, how)


@twin_of(reference.WholePages)
@dataclass(frozen=True)
class WholePages(Protect):
    """Protects the page that is being written, and every page that holds a safe entry."""

    inner: Protect
    page: int

    @property
    def on_host(self) -> bool:
        """Whether the reference computes the inner protection."""
        return self.inner.on_host

    def safe(self, seen: Observation) -> Marks:
        pages = seen.positions // self.page
        newest = pages == (seen.clock.seen - 1) // self.page
        inner = self.inner.safe(seen)
        if inner is None:
            return newest
        held = over_pages((inner & seen.present).float(), seen, self.page, "amax")
        return newest | (held > 0)

    def count(self, clock: Clock, entries: int) -> int | None:
        if isinstance(self.inner, Edges):
            first, recent = self.inner.first(clock), self.inner.recent
        elif self.inner.count(clock, entries) == 0:
            first, recent = 0, 0
        else:
            return None
        pinned = -(-first // self.page) * self.page
        newest = max(0, clock.seen - max(1, recent)) // self.page * self.page
        return clock.seen if newest <= pinned else pinned + clock.seen - newest


@twin_of(reference.Pages)
@dataclass(frozen=True)
class Pages(Budget):
    """As many whole pages as ``budget`` entries fill; a page that is being written counts whole."""

    budget: int
    page: int

    def room(self, clock: Clock, entries: int, safe: int) -> int:
        places = self.budget // self.page * self.page
        safe = -(-safe // self.page) * self.page
        check_protected(places, safe)
        return places - safe


def over_pages(x: PerEntry, seen: Observation, page: int, how: str) -> PerEntry:
    """Return for each entry the maximum or the mean over the entries of its page."""
    beyond = -(-max(row.seen for row in seen.clock.rows) // page)  # for empty slots
    pages = torch.where(seen.present, seen.positions // page, beyond).long()
    worth = x.new_zeros((*x.shape[:2], beyond + 1))
    return worth.scatter_reduce(2, pages, x, how, include_self=False).gather(2, pages)
