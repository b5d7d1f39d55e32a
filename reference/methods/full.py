"""Full cache: nothing is evicted. The yardstick of every error measure."""

from dataclasses import dataclass

from kvlab.reference.method import Method, refuse_budget
from kvlab.reference.observation import NO_ATTENTION, Marks, Observation, Scores, State
from kvlab.reference.policy import Never, Nobody, Policy, Score, Unlimited


@dataclass(frozen=True)
class Recency(Score):
    """Rates newer entries higher, for methods whose schedule and protection already decide."""

    needs = NO_ATTENTION
    joins_kv_heads = True

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        return seen.positions.astype(float)


@dataclass(frozen=True)
class FullCache(Method):
    """Keep every entry at 16 bits."""

    name = "full"
    source = "no compression"
    published = ""
    budgeted = False

    def policy(self, budget: int | None = None) -> Policy:
        refuse_budget(self.name, budget)
        return Policy(self.name, Recency(), Never(), Nobody(), Unlimited())
