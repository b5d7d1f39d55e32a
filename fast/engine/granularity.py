"""Entries that are evicted together, in tensors. Mirrors `kvlab.reference.granularity`."""

from dataclasses import dataclass

import torch

from kvlab.fast.engine.policy import Around, Budget, Observation, Protect, State
from kvlab.fast.kernels.keep import in_ascending_position, rank
from kvlab.fast.kernels.notation import Candidates, Marks, PerEntry, Room, Scores
from kvlab.reference import granularity as reference
from kvlab.reference.checks import check_protected
from kvlab.reference.observation import Clock


@dataclass(frozen=True)
class OneForAllHeads(Around[reference.OneForAllHeads]):
    """One score of an entry for all KV heads of a layer, so that all keep the same entries."""

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        scores = self.inner.score(state, seen, candidates, room)
        if self.spec.join != "union":
            return scores.mean(dim=1, keepdim=True)
        scores = scores.expand_as(seen.positions)
        may_leave = seen.present if candidates is None else candidates & seen.present
        scores, into_slots = in_ascending_position(
            scores.masked_fill(~may_leave, -torch.inf), seen.positions, seen.cache.ordered
        )
        places = into_slots(rank(scores)) - (scores.shape[-1] - 1)
        return places.amax(dim=1, keepdim=True).to(scores.dtype)


@dataclass(frozen=True)
class OneForAllLayers(Around[reference.OneForAllLayers]):
    """The same entries in all layers, by the mean of their scores."""

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        return self.inner.score(state, seen, candidates, room)


@dataclass(frozen=True)
class OfPages(Around[reference.OfPages]):
    """Gives each entry the score of its page."""

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        scores = self.inner.score(state, seen, candidates, room).expand_as(seen.positions)
        how = "amax" if self.spec.join == "max" else "mean"
        return _over_pages(scores, seen, self.spec.page, how)


@dataclass(frozen=True)
class WholePages(Protect[reference.WholePages]):
    """Protects the page that is being written, and every page that holds a protected entry."""

    inner: Protect

    def protected(self, seen: Observation) -> Marks:
        page = self.spec.page
        newest = seen.positions // page == (seen.clock.seen - 1) // page
        inner = self.inner.protected(seen)
        if inner is None:
            return newest
        held = _over_pages((inner & seen.present).float(), seen, page, "amax")
        return newest | (held > 0)

    def count(self, clock: Clock, entries: int) -> int | None:
        edges, page = self.inner.edges(clock, entries), self.spec.page
        if edges is None:
            return None
        first, recent = edges
        pinned = -(-first // page) * page
        newest = max(0, clock.seen - max(1, recent)) // page * page
        return clock.seen if newest <= pinned else pinned + clock.seen - newest


class Pages(Budget[reference.Pages]):
    """As many whole pages as ``budget`` entries fill; a page that is being written counts whole."""

    def room(self, clock: Clock, entries: int, protected: int) -> int:
        page = self.spec.page
        places = self.spec.budget // page * page
        protected = -(-protected // page) * page
        check_protected(places, protected)
        return places - protected


def _over_pages(x: PerEntry, seen: Observation, page: int, how: str) -> PerEntry:
    """Return for each entry the maximum or the mean over the entries of its page."""
    beyond = -(-max(row.seen for row in seen.clock.rows) // page)  # for empty slots
    pages = torch.where(seen.present, seen.positions // page, beyond).long()
    worth = x.new_zeros((*x.shape[:2], beyond + 1))
    return worth.scatter_reduce(2, pages, x, how, include_self=False).gather(2, pages)
