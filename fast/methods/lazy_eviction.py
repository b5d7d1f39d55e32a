"""LazyEviction: tokens become important again; wait and see (arXiv 2506.15969)."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn.functional import logsigmoid

from kvlab.fast.engine.policy import Elapsed, Needs, Observation, Score, State
from kvlab.fast.kernels.decode import RecurrenceCounters, count_recurrence
from kvlab.fast.kernels.notation import Candidates, Marks, PerEntry, Room, Scores, Tensor
from kvlab.reference.cache import Column
from kvlab.reference.methods import lazy_eviction as reference

DECREASING: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": lambda x: 2 * torch.exp(logsigmoid(-x)),
    "exp": lambda x: torch.exp(-x),
    "tanh": lambda x: 1 - torch.tanh(x),
    "inverse": lambda x: 1 / (1 + x),
    "log": lambda x: 1 / (1 + torch.log1p(x)),
    "none": torch.zeros_like,
}
"""Maps of [0, ∞) onto (0, 1] that fall from 1: the forms of Appendix D and Table 5."""


class Recurrence(Score[reference.Recurrence]):
    """Rates how soon an entry is expected to matter again, judged by its own history."""

    tensors_alone = True

    @property
    def columns(self) -> dict[str, Column]:
        columns: dict[str, Column] = {
            "elapsed": Elapsed("tokens since the latest activation", integer=True, since="stamp"),
            "interval": self.spec.columns["interval"],
        }
        if self.spec.options.stamp_start == "first_activation":
            columns["activated"] = self.spec.columns["activated"]
        return columns

    @property
    def needs(self) -> Needs:
        if self.spec.options.stamp_start != "before_birth":
            return super().needs
        return replace(super().needs, counters=self.counters)

    def counters(self, column: Callable[[str], Tensor]) -> RecurrenceCounters:
        """Return what attention to one token counts, as `observe` does."""
        return RecurrenceCounters(
            column("elapsed"), column("interval"), self.spec.options.threshold
        )

    def observe(self, state: State, seen: Observation) -> None:
        if seen.clock.prefilling or seen.attended.counted:
            return
        active = seen.received(self.spec.options.reduce) >= self.spec.options.threshold
        elapsed = state.entries["elapsed"]
        tokens = seen.query_positions.shape[1]
        if self.spec.options.threshold == 0:
            active &= seen.positions[:, :, None] <= seen.query_positions[:, None, :, None]
        # The loop counts every column; what is no token of an entry's life is taken off before:
        # padding, and the columns before the entry's own, if it came with this block.
        older_columns = (seen.positions - _first_position(seen)).clamp(min=0)
        elapsed.sub_(_padded(seen) + older_columns)
        if self.spec.options.stamp_start == "birth":
            newborn = seen.positions >= _first_position(seen)
            elapsed.sub_(newborn.to(elapsed.dtype))
        for token in range(tokens):
            elapsed.add_(1)
            self.observe_token(state, active[:, :, token])
        elapsed.clamp_(min=0)

    def observe_token(self, state: State, active: Marks) -> None:
        """Take in what one token activated."""
        counts = active
        if self.spec.options.stamp_start == "first_activation":
            activated = state.entries["activated"]
            counts = active & (activated > 0)
            activated.logical_or_(active)
        count_recurrence(state.entries["elapsed"], state.entries["interval"], active, counts)

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        dtype = seen.queries.dtype
        elapsed, interval = state.entries["elapsed"], state.entries["interval"]
        at_least_one = interval.clamp(min=1).to(dtype)
        h1 = self.elapsed_score(elapsed.to(dtype), at_least_one)
        h2 = self.interval_score(at_least_one)
        importance = torch.where(interval > 0, h1 + h2, 0.0)
        if self.spec.options.zero_interval == "limit":
            importance = torch.where((interval == 0) & (elapsed == 0), h1, importance)
        if self.spec.options.guard:
            importance = importance + reference.LARGEST * (elapsed < interval).to(dtype)
        return importance

    def elapsed_score(self, elapsed: Tensor, interval: Tensor) -> PerEntry:
        """H1: falls as the time since the last activation outgrows the longest interval."""
        offset = 1.0 if self.spec.options.official else 0.0
        return DECREASING[self.spec.options.h1](offset + elapsed / interval)

    def interval_score(self, interval: Tensor) -> PerEntry:
        """H2: falls with the longest interval."""
        form = DECREASING[self.spec.options.h2]
        if self.spec.options.h2 == "none" or self.spec.options.h2_reading == "code":
            return form(interval - 1.0)
        if self.spec.options.h2_reading == "acl":
            return form(interval + 1.0)
        return torch.where(interval > 1, form(1 / (interval - 1.0).clamp(min=1.0)), 0.0)


def _first_position(seen: Observation) -> Tensor:
    """Return the position of each row's first token here; a row without one has no newer entry."""
    last = seen.query_positions[:, -1, None, None]
    first = last + 1 + _padded(seen) - seen.query_positions.shape[1]
    return first.masked_fill(last < 0, torch.iinfo(first.dtype).max)


def _padded(seen: Observation) -> Tensor:
    return (seen.query_positions < 0).sum(dim=1, dtype=torch.int32)[:, None, None]
