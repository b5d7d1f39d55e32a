"""DDKS, also known as MiKV: do not discard, but keep it small (CRQ8JuQDEd; 2402.18096)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kvlab.fast.engine.cache import KeepSet, LayerCache
from kvlab.fast.engine.policy import Clock, Entries, Observation, Precision, Protect
from kvlab.fast.engine.storage import EMPTY, Storage
from kvlab.fast.engine.twins import twin_of
from kvlab.fast.kernels.common import to_device
from kvlab.fast.kernels.notation import Float, Int, Marks, Tensor
from kvlab.reference.methods import ddks as reference
from kvlab.reference.quantization import FULL_BITS


@dataclass(frozen=True)
class AlsoDemoted(Protect[reference.AlsoDemoted]):
    """Protects the entries of ``protect``, and all entries that were demoted before."""

    protect: Protect

    def protected(self, seen: Observation) -> Marks:
        demoted = seen.bits < FULL_BITS
        protected = self.protect.protected(seen)
        return demoted if protected is None else demoted | protected

    def count(self, clock: Clock, entries: int) -> int | None:
        return self.protect.count(clock, entries)


@twin_of(reference.FullPrecisionEntries)
class FullPrecisionEntries(Entries):
    """At most ``budget`` entries at full precision."""


class Demote(Precision[reference.Demote]):
    """Entries outside the keep set stay, quantised per token."""

    def store(self, cache: LayerCache, seen: Observation, keep: KeepSet) -> KeepSet:
        assert cache.mixed is not None
        options = self.spec.options
        keys, values = cache.mixed
        counts = tuple(n - stay for n, stay in zip(cache.counts, keep.counts, strict=True))
        if any(counts):
            slots = left_out(seen, keep, max(counts))
            if options.reading == "mikv":
                first = [
                    int(new > 0 == old) for new, old in zip(counts, cache.demoted, strict=True)
                ]
                _measure_balance(keys, seen, first)
            keys.quantize_tokens(slots, options.bits, options.group, counts)
            values.quantize_tokens(slots, options.bits, options.group, counts)
            cache.demoted = tuple(a + b for a, b in zip(cache.demoted, counts, strict=True))
        everything = torch.arange(len(cache), device=seen.positions.device).expand_as(
            seen.positions
        )
        return KeepSet(everything, cache.counts)


def left_out(seen: Observation, keep: KeepSet, longest: int) -> Int[Tensor, "N G longest"]:
    """Return the slots that hold an entry and are not kept, in ascending position."""
    goes = seen.present & ~keep.among(len(seen.cache))
    last = torch.iinfo(seen.positions.dtype).max
    order = torch.where(goes, seen.positions, last).argsort(dim=-1)[:, :, :longest]
    return torch.where(goes.gather(-1, order), order, EMPTY)


def _measure_balance(keys: Storage, seen: Observation, which: Sequence[int]) -> None:
    """Fix the balance of those sequences whose first entries are demoted now."""
    if keys.balance is None:
        keys.balance = torch.ones_like(seen.keys[:, :, 0], dtype=torch.float64)
    if any(which):
        now = to_device(which, seen.positions.device)[:, None, None]
        keys.balance = torch.where(now > 0, balance(seen), keys.balance)


def balance(seen: Observation) -> Float[Tensor, "N G d"]:
    """Per channel: the factor that makes keys as large as queries; 1 where either is zero.

    In float64, because codes depend on it.
    """
    real = (seen.clock.positions >= 0)[:, None, None, :, None]
    largest_query = (seen.queries.double().abs() * real).amax(dim=(2, 3))
    largest_key = (seen.keys.double().abs() * seen.present[..., None]).amax(dim=2)
    usable = (largest_query > 0) & (largest_key > 0)
    return torch.sqrt(torch.where(usable, largest_query / largest_key, 1.0))
