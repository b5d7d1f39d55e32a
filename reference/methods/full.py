"""Full cache: nothing is forgotten. The yardstick of every error measure."""

from dataclasses import dataclass

from jaxtyping import Bool, Float

from kvlab.reference.cache import State
from kvlab.reference.method import Method, refuse_budget
from kvlab.reference.notation import Array
from kvlab.reference.policy import (
    NO_ATTENTION,
    Full,
    Never,
    Nobody,
    Observation,
    Policy,
    Score,
    Unlimited,
)


@dataclass(frozen=True)
class Recency(Score):
    """The newer, the better: for methods whose schedule and protection already decide."""

    needs = NO_ATTENTION

    def score(
        self, state: State, seen: Observation, candidates: Bool[Array, "G n"], room: int
    ) -> Float[Array, "G n"]:
        """Rate an entry by its position."""
        return seen.positions.astype(float)


@dataclass(frozen=True)
class FullCache(Method):
    """Keep every entry at 16 bits."""

    name = "full"
    source = "no compression"
    equations = ()
    budgeted = False

    def policy(self, budget: int | None = None) -> Policy:
        """Never select.

        Raises:
            ValueError: if a budget is given.
        """
        refuse_budget(self.name, budget)
        return Policy(self.name, Recency(), Never(), Nobody(), Unlimited(), Full())
