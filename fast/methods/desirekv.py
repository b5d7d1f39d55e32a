"""DesireKV: importance, sensitivity, and tokens after a moment of doubt (AAAI 2026)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvlab.fast.engine.batch import KeepSet
from kvlab.fast.engine.cache import LayerCache, State
from kvlab.fast.engine.notation import Candidates, Marks, PerEntry, Positions, Room, Scores, Vectors
from kvlab.fast.engine.observation import Observation
from kvlab.fast.engine.policy import Budget, Precision, Protect, Score, twin_of
from kvlab.fast.engine.storage import EMPTY
from kvlab.fast.engine.windows import (
    among_candidates,
    mean_pool,
    queries_remembered,
    remember_queries,
    window_received,
)
from kvlab.fast.kernels.quantise import outlier_scores
from kvlab.reference.methods import desirekv as reference
from kvlab.reference.observation import Clock
from kvlab.reference.quantization import FULL_BITS
from kvlab.reference.windows import Border


@twin_of(reference.DecisionWindow)
@dataclass(frozen=True)
class DecisionWindow:
    """The generated entries that an event decides about."""

    interval: int
    selector: int
    scope: Literal["window", "all"]

    def events(self, clock: Clock) -> tuple[int, int]:
        """Count the events before this block, and those up to its end."""
        passed = (clock.generated - self.selector) // self.interval
        before = max(0, (clock.generated_before - self.selector) // self.interval)
        return before, max(before, passed)

    def members(self, seen: Observation) -> Marks:
        """Mark the P generated tokens before the selector; none in a sequence without an event."""
        return seen.clock.once((self, seen.layer), lambda: self._members(seen))

    def _members(self, seen: Observation) -> Marks:
        borders = []
        for clock in seen.clock.rows:
            before, passed = self.events(clock)
            first = before if self.scope == "window" or before == passed else 0
            borders.append([clock.prompt + count * self.interval for count in (first, passed)])
        first, last = torch.tensor(borders, device=seen.positions.device).T[:, :, None, None]
        return (seen.positions >= first) & (seen.positions < last)


@twin_of(reference.Doubt)
@dataclass(frozen=True)
class Doubt:
    """Tokens that follow a low-confidence step."""

    quantile: float | None
    threshold: float | None
    shift: Literal[0, 1]

    def marks(self, seen: Observation, window: Marks) -> Marks:
        """Mark the window's entries whose predecessor was produced without confidence."""
        if self.quantile is None and self.threshold is None:
            return torch.zeros_like(window)
        before = seen.positions.long() - self.shift
        confidence = seen.confidence[:, None].expand(*before.shape[:2], -1).double()
        known = confidence.gather(-1, before.clamp(min=0)).masked_fill(before < 0, torch.nan)
        if self.threshold is not None:
            return window & (known < self.threshold)
        assert self.quantile is not None
        among = known[:, :1].masked_fill(~window[:, :1], torch.nan)
        limit = torch.nanquantile(among, self.quantile, dim=-1, keepdim=True)
        return window & (known < limit)


@twin_of(reference.OutsideWindow)
@dataclass(frozen=True)
class OutsideWindow(Protect):
    """Everything that the event does not decide about; on request also the doubtful tokens."""

    window: DecisionWindow
    doubt: Doubt | None

    def safe(self, seen: Observation) -> Marks:
        members = self.window.members(seen)
        if self.doubt is None:
            return ~members
        return ~members | self.doubt.marks(seen, members)

    def count(self, clock: Clock, entries: int) -> int | None:
        if self.window.scope == "all" or self.doubt is not None:
            return None
        before, passed = self.window.events(clock)
        undecided = clock.seen - before * self.window.interval
        if entries < undecided:  # entries of the window may be among those that have left
            return None
        return entries - (passed - before) * self.window.interval


@twin_of(reference.Importance)
@dataclass(frozen=True)
class Importance(Score):
    """Pooled attention of the selector window, one value per token and layer."""

    window: DecisionWindow
    radius: int
    border: Border
    normalize_over: Literal["candidates", "present"]
    random_seed: int | None

    @property
    def couples_heads(self) -> bool:
        return self.random_seed is None

    def observe(self, state: State, seen: Observation) -> None:
        remember_queries(state, seen, self.window.selector)

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        members = self.window.members(seen)
        if self.random_seed is not None:
            return random_scores(seen, self.random_seed)
        over = members if self.normalize_over == "candidates" else None
        selector = self.window.selector
        attention = window_received(state, seen, selector, over).mean(dim=1)
        raw = attention[:, None] / queries_remembered(state, selector)
        return among_candidates(
            raw,
            members,
            seen,
            lambda x, present: mean_pool(x, 2 * self.radius + 1, self.border, present),
        )


def random_scores(seen: Observation, seed: int) -> PerEntry:
    """Draw one value per token and layer, for the ablations, as the reference does."""
    N, _, n = seen.positions.shape
    order = torch.argsort(seen.positions, dim=-1)
    drawn = np.zeros((N, 1, n))
    for number, clock in enumerate(seen.clock.rows):
        rng = np.random.default_rng([seed, seen.layer, clock.seen])
        count = seen.cache.counts[number]
        drawn[number, 0, n - count :] = rng.random(count)
    values = torch.from_numpy(drawn).to(seen.queries).expand_as(seen.positions)
    return torch.empty_like(values, memory_format=torch.contiguous_format).scatter_(
        -1, order, values
    )


@twin_of(reference.ShareOfWindow)
@dataclass(frozen=True)
class ShareOfWindow(Budget):
    """The important half of a window, or another share of it."""

    share: float

    def room(self, clock: Clock, entries: int, safe: int) -> int:
        return int((entries - safe) * self.share)


def sensitivity(
    keys: Vectors,
    window: Marks,
    group: int,
    over: Literal["outliers", "block"],
) -> Float[Tensor, "N n"]:
    """Quantisation sensitivity of each token in one layer, relative to the window's largest."""
    per_token = outlier_scores(keys, group, over).mean(dim=(1, 3))
    largest = (per_token * window[:, 0]).amax(dim=-1, keepdim=True)
    return torch.where(largest > 0, per_token / largest, 0.0)


@twin_of(reference.BitsBySensitivity)
@dataclass(frozen=True)
class BitsBySensitivity(Precision):
    """Sensitive or doubtful entries at ``high_bits``, other important ones at ``low_bits``."""

    window: DecisionWindow
    doubt: Doubt
    low_bits: int
    high_bits: int
    value_bits: int | None
    group: int
    quantile: float
    threshold: float | None
    over: Literal["outliers", "block"]
    random_seed: int | None

    uses_confidence = True

    @property
    def couples_heads(self) -> bool:
        return self.random_seed is None

    def store(self, cache: LayerCache, seen: Observation, keep: KeepSet) -> KeepSet:
        """Spare doubtful tokens from eviction, then quantise what the event decided about.

        Waits for the device: only the data tell how many tokens are doubtful or sensitive.
        """
        members = self.window.members(seen)
        doubtful = self.doubt.marks(seen, members)
        stays = (keep.among(len(cache)) | doubtful) & seen.present
        high = members & (self.sensitive(seen, members)[:, None] | doubtful)
        for tier, bits in ((high, self.high_bits), (~high, self.low_bits)):
            chosen = stays & members & tier
            quantize_entries(cache, chosen, bits, self.value_bits or bits, self.group)
        counts = stays[:, 0].sum(dim=-1).tolist()
        return KeepSet(slots_of(stays, seen.positions, max(counts)), counts)

    def sensitive(self, seen: Observation, members: Marks) -> Bool[Tensor, "N n"]:
        """Mark the tokens above the threshold, or above the quantile of the window."""
        if self.random_seed is not None:
            relative = random_scores(seen, self.random_seed + 1)[:, 0].double()
        else:
            relative = sensitivity(seen.keys, members, self.group, self.over)
        if self.threshold is not None:
            return relative > self.threshold
        among = relative.masked_fill(~members[:, 0], torch.nan)
        return relative > torch.nanquantile(among, self.quantile, dim=-1, keepdim=True)


def slots_of(chosen: Marks, positions: Positions, longest: int) -> Int[Tensor, "N G longest"]:
    """Return the chosen slots in ascending position, at the end of a row of ``longest``."""
    place = torch.where(chosen, positions, -1)
    return place.argsort(dim=-1, stable=True)[:, :, positions.shape[-1] - longest :]


def quantize_entries(
    cache: LayerCache,
    entries: Marks,
    key_bits: int,
    value_bits: int,
    group: int,
) -> None:
    """Lower the precision of entries; an entry that is stored at fewer bits already stays so."""
    assert cache.mixed is not None
    for storage, bits in zip(cache.mixed, (key_bits, value_bits), strict=True):
        if bits < FULL_BITS:
            chosen = entries & (storage.bits() > bits)
            longest = int(chosen.sum(dim=-1).max())
            slots = slots_of(chosen, cache.positions, longest)
            used = chosen.gather(-1, slots)
            storage.quantize_tokens(torch.where(used, slots, EMPTY), bits, group)
