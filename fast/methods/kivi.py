"""KIVI: keys per channel, values per token (arXiv 2402.02750)."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from kvlab.fast.engine.cache import KeepSet, LayerCache
from kvlab.fast.engine.observation import Observation
from kvlab.fast.engine.policy import Precision
from kvlab.fast.engine.storage import EMPTY, Storage
from kvlab.fast.engine.twins import twin_of
from kvlab.fast.kernels.common import to_device
from kvlab.reference.methods import kivi as reference


@twin_of(reference.KeysPerChannelValuesPerToken)
class KeysPerChannelValuesPerToken(Precision[reference.KeysPerChannelValuesPerToken]):
    """Quantise everything that is older than the residual window."""

    def store(self, cache: LayerCache, seen: Observation, keep: KeepSet) -> KeepSet:
        assert cache.mixed is not None
        options, (keys, values) = self.spec.options, cache.mixed
        group, residual, d = options.group, options.residual, keys.dimension
        if d % group:
            raise ValueError(f"group = {group} must divide the head dimension {d}")
        key_due = [n // residual * residual for n in cache.counts]
        slots, counts = _newly_due(cache, keys, key_due)
        keys.quantize_channels(slots, options.key_bits, group, counts)
        value_due = [max(0, n - residual) for n in cache.counts]
        slots, counts = _newly_due(cache, values, value_due)
        values.quantize_tokens(slots, options.value_bits, group, counts)
        return keep


def _newly_due(
    cache: LayerCache, storage: Storage, due: Sequence[int]
) -> tuple[Int[Tensor, "N G chosen"] | range, tuple[int, ...]]:
    # Nothing is ever evicted, so the entries at full precision are the newest.
    full = storage.tables[0]
    done = [n - wide for n, wide in zip(cache.counts, full.counts, strict=True)]
    counts = tuple(last - first for first, last in zip(done, due, strict=True))
    longest, width, device = max(counts), len(cache), cache.positions.device
    if isinstance(full.slots, range) and min(counts) == longest:
        return full.slots[: max(0, longest)], counts
    if longest <= 0:
        return range(0), counts
    column = torch.arange(longest, device=device)
    first = to_device([width - n + d for n, d in zip(cache.counts, done, strict=True)], device)
    place = (first[:, None] + column).clamp(max=width - 1)[:, None]
    place = place.expand(*cache.positions.shape[:2], longest)
    slots = place if cache.ordered else cache.positions.argsort(dim=-1).gather(-1, place)
    used = column < to_device(counts, device)[:, None]
    return torch.where(used[:, None], slots, EMPTY), counts
