"""Both methods in PyTorch."""

from looks import MostLooks
from pyramid import Falling

from kvlab.fast import Budget, Score, twin_of


@twin_of(MostLooks)
class FastLooks(Score):
    def observe(self, state, seen):
        looked = (seen.attention.mean(dim=2) >= self.spec.share).sum(dim=2)
        state.entries["looks"].add_(looked)

    def score(self, state, seen, candidates, room):
        return (state.entries["looks"] + 1) / (2 * seen.clock.seen - seen.positions)


@twin_of(Falling)
class FastFalling(Budget):
    def room_of_layer(self, clock, entries, protected, layer, layers):
        return self.spec.entries(layer, layers) - protected
