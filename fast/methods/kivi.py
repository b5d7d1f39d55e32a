"""KIVI: keys per channel, values per token (arXiv 2402.02750)."""

from collections.abc import Sequence

import torch

from kvlab.fast.engine.policy import KeepSet, LayerCache, Observation, Precision
from kvlab.fast.engine.storage import EMPTY, Chosen, Storage, quantize_oldest
from kvlab.fast.kernels.common import to_device
from kvlab.reference.methods import kivi as reference


class KeysPerChannelValuesPerToken(Precision[reference.KeysPerChannelValuesPerToken]):
    """Quantise everything that is older than the residual window."""

    by_age = True

    def store(self, cache: LayerCache, seen: Observation, keep: KeepSet) -> KeepSet:
        self.store_by_age([cache])
        return keep

    def store_by_age(self, caches: Sequence[LayerCache]) -> None:
        options = self.spec.options
        single: dict[tuple[torch.device, torch.Size], list[Storage]] = {}
        for cache in caches:
            assert cache.mixed is not None
            (keys, values), residual, d = cache.mixed, options.residual, cache.mixed[0].dimension
            if d % options.group:
                raise ValueError(f"group = {options.group} must divide the head dimension {d}")
            whole_runs = [n // residual * residual for n in cache.counts]
            slots, counts = oldest_until(cache, keys, whole_runs)
            keys.quantize_channels(slots, options.key_bits, options.group, counts)
            but_the_newest = [max(0, n - residual) for n in cache.counts]
            slots, counts = oldest_until(cache, values, but_the_newest)
            if isinstance(slots, range) and len(slots) == 1:
                oldest = values.oldest
                single.setdefault((oldest.device, oldest.shape), []).append(values)
            else:
                values.quantize_tokens(slots, options.value_bits, options.group, counts)
        for alike in single.values():
            quantize_oldest(alike, options.value_bits, options.group)


def oldest_until(
    cache: LayerCache, storage: Storage, coded: Sequence[int]
) -> tuple[Chosen, tuple[int, ...]]:
    """Return the slots to code, and how many of each sequence, so that its first ``coded`` are.

    Nothing is ever evicted, so the entries at full precision are the newest, and the oldest of
    those are coded next. Slots of sequences alike are a range; else `EMPTY` fills the shorter ones.
    """
    full = storage.tables[0]
    done = [n - wide for n, wide in zip(cache.counts, full.counts, strict=True)]
    counts = tuple(until - first for first, until in zip(done, coded, strict=True))
    longest = max(counts)
    if isinstance(full.slots, range) and min(counts) == longest:
        return full.slots[: max(0, longest)], counts
    if longest <= 0:
        return range(0), counts
    width, device = len(cache), cache.positions.device
    column = torch.arange(longest, device=device)
    first = to_device([width - n + d for n, d in zip(cache.counts, done, strict=True)], device)
    place = (first[:, None] + column).clamp(max=width - 1)[:, None]  # among slots by position
    place = place.expand(*cache.positions.shape[:2], longest)
    slots = place if cache.ordered else cache.positions.argsort(dim=-1).gather(-1, place)
    used = column < to_device(counts, device)[:, None]
    return torch.where(used[:, None], slots, EMPTY), counts
