"""RaaS: the age of the last use (arXiv 2502.11147)."""

import torch
from jaxtyping import Bool, Float, Int

from kvlab.fast.engine.policy import Observation, Score, State
from kvlab.fast.kernels.keep import in_ascending_position, rank
from kvlab.fast.kernels.notation import Candidates, Marks, PerEntry, Positions, Room, Scores, Tensor
from kvlab.reference.methods import raas as reference

PageKeys = Float[Tensor, "N G pages d"]
"""A number of every page and channel."""


class LastUse(Score[reference.LastUse]):
    """Generated step at which an entry was last attended to; prompt entries start at 0."""

    tensors_alone = True

    def observe(self, state: State, seen: Observation) -> None:
        if seen.clock.prefilling:
            return
        stamp = state.entries["stamp"]
        received = seen.received("max" if self.spec.options.share is None else "mean")
        for row in range(seen.query_positions.shape[1]):
            position = seen.query_positions[:, row, None, None]
            used = self.used(received[:, :, row], position, seen)
            used |= seen.positions == position
            stamp.clamp_(min=used * (position + 1 - seen.clock.prompt))

    def used(self, looked_at: PerEntry, position: Int[Tensor, "N 1 1"], seen: Observation) -> Marks:
        """Mark what counts as used: above the threshold, or the top share of the group's mean."""
        threshold, share = self.spec.options.threshold, self.spec.options.share
        if share is None:
            used = looked_at >= threshold
            return used if threshold > 0 else used & (seen.positions <= position)
        present = seen.present & (seen.positions <= position)
        stamped = torch.ceil(share * present.sum(dim=-1, keepdim=True).double())
        looked_at = torch.where(present, looked_at, -1.0)
        looked_at, into_slots = in_ascending_position(looked_at, seen.positions, seen.cache.ordered)
        ranks = into_slots(rank(looked_at))
        return (ranks >= present.shape[-1] - stamped) & present

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        return state.entries["stamp"].to(seen.queries.dtype)


class PageUse(Score[reference.PageUse]):
    """Generated step at which a page of consecutive positions was last among the best."""

    def observe(self, state: State, seen: Observation) -> None:
        if seen.clock.prefilling:
            return
        stamp, size = state.entries["stamp"], self.spec.page
        pages = -(-max(row.seen for row in seen.clock.rows) // size)
        page_of = torch.where(seen.present, seen.positions // size, pages).long()
        new = seen.query_positions
        first = torch.where(new < 0, seen.clock.seen[:, 0], new).amin(dim=1)[:, None, None]
        earlier = torch.where(seen.positions < first, page_of, pages)
        highest, lowest = self.extremes(seen, earlier, pages)
        for row in range(new.shape[1]):
            position = new[:, row, None, None]
            slot = (seen.positions == position).int().argmax(dim=-1, keepdim=True)[..., None]
            key = seen.keys.gather(2, slot.expand(*slot.shape[:3], seen.keys.shape[3]))
            page = torch.where(position < 0, pages, position // size)[..., None].long()
            highest.scatter_reduce_(2, page.expand_as(key), key, "amax")
            lowest.scatter_reduce_(2, page.expand_as(key), key, "amin")
            begun = seen.present & (seen.positions <= position)
            present = torch.zeros_like(highest[..., 0], dtype=torch.bool)
            present.scatter_(2, torch.where(begun, page_of, pages), True)
            present[:, :, pages] = False
            best = self.best(seen.queries[:, :, :, row], highest, lowest, present)
            stamped = best.gather(2, page_of) | (page_of == position // size)
            torch.maximum(stamp, stamped * (position + 1 - seen.clock.prompt), out=stamp)

    def extremes(
        self, seen: Observation, page_of: Positions, pages: int
    ) -> tuple[PageKeys, PageKeys]:
        """Largest and smallest key of every page, per channel; one more page for empty slots."""
        N, G, _, d = seen.keys.shape
        index = page_of[..., None].expand_as(seen.keys)
        none = seen.keys.new_full((N, G, pages + 1, d), torch.inf)
        return (
            (-none).scatter_reduce(2, index, seen.keys, "amax"),
            none.scatter_reduce(2, index, seen.keys, "amin"),
        )

    def best(
        self,
        queries: Float[Tensor, "N G rho d"],
        highest: PageKeys,
        lowest: PageKeys,
        present: Bool[Tensor, "N G pages"],
    ) -> Bool[Tensor, "N G pages"]:
        """Mark the pages with the highest bound of any q·k, maximum over the query group."""
        rows = queries[:, :, :, None]
        per_channel = torch.maximum(rows * highest[:, :, None], rows * lowest[:, :, None])
        bound = per_channel.sum(dim=-1).amax(dim=2).masked_fill(~present, -torch.inf)
        return (rank(bound) >= bound.shape[-1] - self.spec.stamped_pages) & present

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        return state.entries["stamp"].to(seen.queries.dtype)
