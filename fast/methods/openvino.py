"""OpenVINO GenAI's cache eviction."""

import torch

from kvlab.fast.engine.cache import State
from kvlab.fast.engine.notation import Candidates, PerEntry, Room, Scores
from kvlab.fast.engine.observation import Observation
from kvlab.fast.engine.policy import Budget, Score
from kvlab.fast.engine.selection import in_ascending_position
from kvlab.fast.engine.twins import twin_of
from kvlab.reference.checks import check_protected
from kvlab.reference.methods import openvino as reference
from kvlab.reference.observation import Clock


@twin_of(reference.PooledAttention)
class PooledAttention(Score[reference.PooledAttention]):
    """Attention of all heads so far, each step's share pooled over the entries that follow."""

    def observe(self, state: State, seen: Observation) -> None:
        rows = seen.received("sum").sum(dim=1, keepdim=True)
        window, clock = self.spec.options.window, seen.clock
        if clock.prefilling and window:
            counted = seen.query_positions >= clock.prompt[:, 0] - window
            rows = rows * counted[:, None, :, None]
        received = rows.sum(dim=2).expand_as(seen.positions)
        if clock.prefilling:
            state.entries["of_prompt"].add_(received)
            return
        if not clock.rows[0].generated_before:
            state.entries["accumulated"].add_(self.pooled(state.entries["of_prompt"], seen))
        state.entries["accumulated"].add_(self.pooled(received, seen))

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


@twin_of(reference.CompletePages)
class CompletePages(Budget[reference.CompletePages]):
    """As many complete pages as ``budget`` entries fill, and the page that is being written."""

    def room(self, clock: Clock, entries: int, safe: int) -> int:
        page = self.spec.page
        places = self.spec.budget // page * page + (page if clock.seen % page else 0)
        held = -(-safe // page) * page
        check_protected(places, held)
        return places - held
