"""OpenVINO GenAI's cache eviction."""

from dataclasses import dataclass

import torch

from kvlab.fast.engine.policy import Around, Budget, Clock, Observation, Score, State
from kvlab.fast.kernels.keep import in_ascending_position
from kvlab.fast.kernels.notation import Candidates, PerEntry, Room, Scores
from kvlab.reference.checks import check_protected
from kvlab.reference.methods import openvino as reference


class PooledAttention(Score[reference.PooledAttention]):
    """Attention of all heads so far, each step's share pooled over the entries that follow."""

    def observe(self, state: State, seen: Observation) -> None:
        rows = seen.received("sum").sum(dim=1, keepdim=True)
        options, clock, at = self.spec.options, seen.clock, seen.query_positions
        of_prompt, total = state.entries["of_prompt"], state.entries["accumulated"]
        if not clock.prefilling:
            if any(row.block and not row.generated_before for row in clock.rows):
                begins = (at == clock.prompt[:, 0]).any(dim=1)[:, None, None]
                total.add_(self.pooled(of_prompt, seen) * begins)
            total.add_(self.pooled(rows.sum(dim=2).expand_as(seen.positions), seen))
            return
        if options.window:
            rows = rows * (at >= clock.prompt[:, 0] - options.window)[:, None, :, None]
        if not options.chunk:
            of_prompt.add_(rows.sum(dim=2).expand_as(seen.positions))
            return
        first = min(row.seen - row.block for row in clock.rows) // options.chunk
        for part in range(first, (max(row.seen for row in clock.rows) - 1) // options.chunk + 1):
            mine = (at // options.chunk == part)[:, None, :, None]
            of_prompt.add_((rows * mine).sum(dim=2).expand_as(seen.positions))
            whole = (at == (part + 1) * options.chunk - 1).any(dim=1)[:, None, None]
            total.add_(self.pooled(of_prompt, seen) * whole)
            of_prompt.mul_(~whole)

    def pooled(self, received: PerEntry, seen: Observation) -> PerEntry:
        """Return the maximum over each entry and those after it; the first ones get nothing."""
        counted = seen.positions >= self.spec.options.start
        ascending, into_slots = in_ascending_position(
            received * counted, seen.positions, seen.cache.ordered
        )
        width = self.spec.options.pool
        beyond = torch.nn.functional.pad(ascending, (0, width - 1))
        return into_slots(beyond.unfold(-1, width, 1).amax(dim=-1)) * counted

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        total, options, clock = state.entries["accumulated"], self.spec.options, seen.clock
        if options.aggregation == "sum":
            return total
        counted = clock.seen - seen.positions
        if options.window:
            counted = counted.minimum(options.window + (clock.seen - clock.prompt).clamp(min=0))
        return total / counted.clamp(min=1)


class CompletePages(Budget[reference.CompletePages]):
    """As many complete pages as ``budget`` entries fill, and the page that is being written."""

    def room(self, clock: Clock, entries: int, protected: int) -> int:
        page = self.spec.page
        places = self.spec.budget // page * page + (page if clock.seen % page else 0)
        places += self.spec.crushed(entries) * page
        held = -(-protected // page) * page
        check_protected(places, held)
        return places - held


@dataclass(frozen=True)
class Crushed(Around[reference.Crushed]):
    """Rates entries 1 that are kept: in the best pages, and in others whose patterns differ."""

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        scores, page = self.inner.score(state, seen, candidates, room)[:, 0], self.spec.pages.page
        received = state.entries["accumulated"][:, 0].double().numpy(force=True)
        may_leave = seen.present if candidates is None else seen.present & candidates
        for row, places in enumerate(room):
            slots = may_leave[row, 0].nonzero()[:, 0]
            blocks = slots[seen.positions[row, 0, slots].argsort()].unflatten(0, (-1, page))
            worth = scores[row, blocks[:, 0]].double().numpy(force=True)
            here = int(seen.present[row, 0].sum())
            stay = self.spec.stay(worth, received[row, blocks.cpu()], places, here)
            scores[row, blocks] = torch.from_numpy(stay).to(scores)[:, None]
        return scores[:, None]
