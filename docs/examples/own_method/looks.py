"""Counts looks."""

from dataclasses import dataclass

import numpy as np

from kvlab.reference import Column, Edges, Entries, EveryBlock, Method, Policy, Score


@dataclass(frozen=True)
class MostLooks(Score):
    """How many queries gave an entry at least a share of their attention, weighted by its age."""

    share: float

    columns = {"looks": Column("queries that looked at the entry", integer=True)}

    def observe(self, state, seen):
        looked = (seen.attention.mean(axis=1) >= self.share).sum(axis=1)
        queries = state.stream.get("asked", np.zeros(1)) + seen.clock.block
        state = state.with_stream(asked=queries)
        return state.with_entries(looks=state.entries["looks"] + looked)

    def score(self, state, seen, candidates, room):
        age = seen.clock.seen - seen.positions
        return (state.entries["looks"] + 1) / (state.stream["asked"] + age)


@dataclass(frozen=True)
class Looks(Method):
    """Keep what is looked at often."""

    share: float = 0.05
    """Share of a query's attention that is a look."""
    recent: int = 4
    """Newest entries that are protected."""

    name = "looks"
    source = "nowhere"

    def policy(self, budget):
        protect = Edges(recent=self.recent)
        return Policy(self.name, MostLooks(self.share), EveryBlock(), protect, Entries(budget))
