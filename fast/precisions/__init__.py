"""Precisions in which every entry is stored on arrival. Mirrors `kvlab.reference.precisions`."""

from dataclasses import dataclass

from kvlab.fast.engine.policy import BatchClock, KeepSet, LayerCache, Observation, Precision
from kvlab.fast.engine.storage import Code
from kvlab.reference import precisions as reference


@dataclass(frozen=True)
class OnArrival(Precision[reference.OnArrival]):
    """Every entry is coded once, right after the block in which it came has been attended."""

    keys: Code
    values: Code

    def encode(self, cache: LayerCache, clock: BatchClock) -> None:
        assert cache.mixed is not None
        first = [row.seen == row.block > 0 for row in clock.rows]
        for storage, code in zip(cache.mixed, (self.keys, self.values), strict=True):
            storage.encode(code, first)

    def store(self, cache: LayerCache, seen: Observation, keep: KeepSet) -> KeepSet:
        return keep
