"""Full cache: nothing is forgotten."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from kvlab.fast.cache import State
from kvlab.fast.policy import Observation, Score, twin_of
from kvlab.reference.methods import full as reference
from kvlab.reference.policy import Clock


@twin_of(reference.Recency)
@dataclass(frozen=True)
class Recency(Score):
    """The newer, the better: for methods whose schedule and protection already decide."""

    def reads(self, clock: Clock) -> str:
        """None."""
        return "none"

    def score(
        self,
        state: State,
        seen: Observation,
        candidates: Bool[Tensor, "N G n"] | None,
        room: Sequence[int],
    ) -> Float[Tensor, "N G n"]:
        """Rate an entry by its position."""
        return seen.positions.to(seen.queries.dtype)
