"""H2O: heavy hitters by accumulated attention (arXiv 2306.14048)."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from kvlab.fast.cache import State
from kvlab.fast.policy import Observation, Score, twin_of
from kvlab.reference.methods import h2o as reference
from kvlab.reference.windows import GroupReduction


@twin_of(reference.AccumulatedAttention)
@dataclass(frozen=True)
class AccumulatedAttention(Score):
    """Sum of all attention that an entry has received since it was written."""

    reduce: GroupReduction

    can_wait = True
    adds_rows = True

    @property
    def fills(self) -> dict[str, float]:
        """A new entry has received nothing."""
        return {"accumulated": 0.0}

    @property
    def reduces(self) -> GroupReduction:
        """Mean or maximum over the query heads of a KV head."""
        return self.reduce

    def observe(self, state: State, seen: Observation) -> None:
        """Add the attention of the block's queries."""
        received = seen.received(self.reduce)
        rows = received.shape[2]
        state.entries["accumulated"].add_(received[:, :, 0] if rows == 1 else received.sum(dim=2))

    def score(
        self,
        state: State,
        seen: Observation,
        candidates: Bool[Tensor, "N G n"] | None,
        room: Sequence[int],
    ) -> Float[Tensor, "N G n"]:
        """Return the sums."""
        return state.entries["accumulated"]
