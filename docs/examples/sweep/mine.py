"""A method outside kvlab: attention is summed as H2O sums it, but fades with every token."""

from dataclasses import dataclass

from kvlab.reference import Column, Edges, Entries, EveryBlock, Method, Policy, Score
from kvlab.reference.method import require_budget


@dataclass(frozen=True)
class FadingAttention(Score):
    """Accumulated attention, multiplied by ``keep`` with every block."""

    keep: float

    columns = {"attention": Column("attention received, faded")}

    def observe(self, state, seen):
        received = seen.attention.mean(axis=1).sum(axis=1)  # [G, n]
        faded = state.entries["attention"] * self.keep**seen.clock.block
        return state.with_entries(attention=faded + received)

    def score(self, state, seen, candidates, room):
        return state.entries["attention"]


@dataclass(frozen=True)
class Mine(Method):
    """Keep what has received most attention lately, and the newest entries."""

    keep: float = 0.99
    """Share of the attention that remains after a token."""
    recent: int = 16
    """Newest entries that are protected."""

    name = "mine"
    source = "an example"

    def policy(self, budget):
        protect, budget = Edges(recent=self.recent), require_budget(self.name, budget)
        return Policy(self.name, FadingAttention(self.keep), EveryBlock(), protect, Entries(budget))
