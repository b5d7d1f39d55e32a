"""Sequences of unequal length in one batch: clocks, keep sets, and host numbers as masks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kvlab.fast.kernels.keep import last_in_use
from kvlab.fast.kernels.notation import Marks, QueryPositions
from kvlab.reference.observation import Clock


@dataclass(eq=False)
class BatchClock:
    """Where in the token stream a block stands, for every sequence of a batch."""

    rows: tuple[Clock, ...]
    """One clock per sequence; its ``block`` does not count padding."""
    positions: QueryPositions
    """Absolute positions of the block's tokens; -1 for padding."""
    prompt: Int[Tensor, "N 1 1"]
    memo: dict[Any, Any] = field(default_factory=dict)
    """Results that were computed from this clock, because all layers ask for the same ones."""

    @property
    def present(self) -> tuple[int, ...]:
        """Tokens of each sequence in this block, without padding."""
        return self.once("present", lambda: tuple(row.block for row in self.rows))

    @property
    def padded_first(self) -> bool:
        """Whether no padding stands behind a token. Waits for the device."""
        return self.once("padded first", lambda: bool((self.positions.diff(dim=1) >= 0).all()))

    @property
    def prefilling(self) -> bool:
        """Whether the block belongs to the prompts, which end together."""
        return self.rows[0].prefilling

    @property
    def seen(self) -> Int[Tensor, "N 1 1"]:
        """Tokens of each sequence, the block included."""
        return self.once("seen", lambda: self.positions[:, -1:, None] + 1)

    def oldest_of(self, recent: int) -> Int[Tensor, "N 1 1"]:
        """Return the position of the first of the ``recent`` newest tokens."""
        return self.once(("oldest", recent), lambda: self.positions[:, -1:, None] - (recent - 1))

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returns, and make it only once."""
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    def to(self, device: torch.device) -> "BatchClock":
        """Return this clock on another device."""
        if self.positions.device == device:
            return self
        return self.once(
            device,
            lambda: BatchClock(self.rows, self.positions.to(device), self.prompt.to(device)),
        )


@dataclass(frozen=True)
class KeepSet:
    """Slots to keep, for every sequence and head."""

    slots: Int[Tensor, "N G kept"]
    """In ascending position; a sequence that keeps fewer slots than another has them at the end."""
    counts: Sequence[int]
    """How many slots are kept per head, for each sequence."""

    @property
    def in_use(self) -> Bool[Tensor, "N G kept"]:
        """Mark the places of ``slots`` that hold a slot of their sequence."""
        used = last_in_use(self.slots.shape[2], self.counts, self.slots.device)
        return used.expand_as(self.slots)

    def among(self, entries: int) -> Marks:
        """Mark which of ``entries`` slots are kept."""
        nobody = torch.zeros(
            (*self.slots.shape[:2], entries), dtype=torch.bool, device=self.slots.device
        )
        return nobody.scatter_(-1, self.slots, self.in_use)
