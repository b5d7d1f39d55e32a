"""Earlier layers keep more."""

from dataclasses import dataclass

from looks import MostLooks

from kvlab.reference import Budget, Edges, EveryBlock, Method, Policy


@dataclass(frozen=True)
class Falling(Budget):
    """From 1.5 times the mean budget in the first layer down to half of it in the last."""

    budget: int

    def entries(self, layer, layers):
        return round(self.budget * (1.5 - layer / max(1, layers - 1)))

    def room(self, seen, protected):
        return self.entries(seen.layer, seen.layers) - int(protected.sum(axis=-1).max())


@dataclass(frozen=True)
class Pyramid(Method):
    """Looks, with more entries in earlier layers."""

    recent: int = 4
    """Newest entries that are protected."""

    name = "pyramid"

    def policy(self, budget):
        protect = Edges(recent=self.recent)
        return Policy(self.name, MostLooks(0.05), EveryBlock(), protect, Falling(budget))
