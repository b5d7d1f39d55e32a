"""DesireKV: importance, sensitivity, and tokens after a moment of doubt (AAAI 2026)."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvlab.fast.engine.cache import KeepSet, LayerCache, State
from kvlab.fast.engine.policy import Budget, Clock, Observation, Precision, Protect, Score
from kvlab.fast.engine.storage import EMPTY
from kvlab.fast.engine.windows import (
    among_candidates,
    mean_pool,
    queries_remembered,
    remember_queries,
    window_received,
)
from kvlab.fast.kernels.notation import (
    Candidates,
    Marks,
    PerEntry,
    Positions,
    Room,
    Scores,
    Vectors,
)
from kvlab.fast.kernels.quantise import outlier_scores
from kvlab.reference.methods import desirekv as reference
from kvlab.reference.methods.desirekv import BEFORE_ALL, DesireKV, events
from kvlab.reference.quantization import FULL_BITS, OutlierMean


def decision_window(options: DesireKV, seen: Observation) -> Marks:
    """Mark the tokens that an event is about, as the reference does; none without an event.

    Protection, score and precision ask for them; they are computed once for a layer.
    """

    def marks() -> Marks:
        borders = []
        for clock in seen.clock.rows:
            before, passed = events(options, clock)
            first = before if options.scope == "window" or before == passed else 0
            borders.append([clock.prompt + count * options.interval for count in (first, passed)])
        first, last = torch.tensor(borders, device=seen.positions.device).T[:, :, None, None]
        return (seen.positions >= first) & (seen.positions < last)

    return seen.clock.once(("decision window", options, seen.layer), marks)


def doubtful(options: DesireKV, seen: Observation, window: Marks) -> Marks:
    """Mark the window's entries whose predecessor was produced without confidence."""
    if options.protection == "none":
        return torch.zeros_like(window)
    before = seen.positions.long() - options.doubt_shift
    confidence = seen.confidence[:, None].expand(*before.shape[:2], -1).double()
    known = confidence.gather(-1, before.clamp(min=0)).masked_fill(before < 0, torch.nan)
    if options.doubt_threshold is not None:
        return window & (known < options.doubt_threshold)
    among = known[:, :1].masked_fill(~window[:, :1], torch.nan)
    limit = torch.nanquantile(among, options.doubt_quantile, dim=-1, keepdim=True)
    return window & (known < limit)


class OutsideWindow(Protect[reference.OutsideWindow]):
    """Everything that the event does not decide about; on request also the doubtful tokens."""

    def protected(self, seen: Observation) -> Marks:
        options = self.spec.options
        window = decision_window(options, seen)
        return ~window | doubtful(options, seen, window) if self.spec.doubtful_too else ~window

    def count(self, clock: Clock, entries: int) -> int | None:
        options = self.spec.options
        if options.scope == "all" or self.spec.doubtful_too:
            return None
        before, passed = events(options, clock)
        undecided = clock.seen - before * options.interval
        if entries < undecided:  # entries of the window may be among those that were evicted
            return None
        return entries - (passed - before) * options.interval


class Importance(Score[reference.Importance]):
    """Pooled attention of the selector window, one value per token and layer."""

    def observe(self, state: State, seen: Observation) -> None:
        remember_queries(state, seen, self.spec.options.selector)

    def score(self, state: State, seen: Observation, candidates: Candidates, room: Room) -> Scores:
        options = self.spec.options
        if options.importance == "random":
            return random_scores(seen, options.seed)
        window = decision_window(options, seen)
        over = window if options.normalize_over == "candidates" else None
        attention = window_received(state, seen, options.selector, over).mean(dim=1)
        raw = attention[:, None] / queries_remembered(state, options.selector)
        kernel = 2 * options.radius + 1
        return among_candidates(raw, window, seen, mean_pool, kernel, options.border)


def random_scores(seen: Observation, seed: int) -> PerEntry:
    """Draw one value per token and layer, for the ablations, as the reference does."""
    N, _, n = seen.positions.shape
    order = torch.argsort(seen.positions, dim=-1)
    drawn = np.zeros((N, 1, n))
    for number, clock in enumerate(seen.clock.rows):
        rng = np.random.default_rng([seed, seen.layer, clock.seen])
        count = seen.cache.counts[number]
        drawn[number, 0, n - count :] = rng.random(count)
    values = torch.from_numpy(drawn).to(seen.queries).expand_as(seen.positions).contiguous()
    return torch.empty_like(values).scatter_(-1, order, values)


class ShareOfWindow(Budget[reference.ShareOfWindow]):
    """The important half of a window, or another share of it."""

    def room(self, clock: Clock, entries: int, protected: int) -> int:
        return int((entries - protected) * (1 - self.spec.options.importance_quantile))


def sensitivity(
    keys: Vectors, window: Marks, group: int, over: OutlierMean
) -> Float[Tensor, "N n"]:
    """Quantisation sensitivity of each token in one layer, relative to the window's largest."""
    per_token = outlier_scores(keys, group, over).mean(dim=(1, 3))
    largest = (per_token * window[:, 0]).amax(dim=-1, keepdim=True)
    return torch.where(largest > 0, per_token / largest, 0.0)


class BitsBySensitivity(Precision[reference.BitsBySensitivity]):
    """Sensitive or doubtful entries at ``high_bits``, other important ones at ``low_bits``."""

    uses_confidence = True

    def store(self, cache: LayerCache, seen: Observation, keep: KeepSet) -> KeepSet:
        """Spare doubtful tokens from eviction, then quantise what the event decided about.

        Waits for the device: only the data tell how many tokens are doubtful or sensitive.
        """
        options, window = self.spec.options, decision_window(self.spec.options, seen)
        in_doubt = doubtful(options, seen, window)
        kept = (keep.among(len(cache)) | in_doubt) & seen.present
        high = window & (self.sensitive(cache.state, seen, window)[:, None] | in_doubt)
        for tier, bits in ((high, options.high_bits), (~high, options.low_bits)):
            chosen = kept & window & tier
            quantize_entries(cache, chosen, bits, options.value_bits or bits, options.group)
        counts = kept[:, 0].sum(dim=-1).tolist()
        return KeepSet(_slots_of(kept, seen.positions, max(counts)), counts)

    def sensitive(self, state: State, seen: Observation, window: Marks) -> Bool[Tensor, "N n"]:
        """Mark the tokens above the threshold, or above the quantile of the window."""
        options = self.spec.options
        if options.sensitivity == "random":
            relative = random_scores(seen, options.seed + 1)[:, 0].double()
        elif options.sensitivity == "attention":
            importance = Importance(reference.Importance(options)).score(state, seen, None, [])
            relative = importance.masked_fill(doubtful(options, seen, window), BEFORE_ALL)[:, 0]
        else:
            relative = sensitivity(seen.keys, window, options.group, options.outlier_mean)
        if options.sensitivity_threshold is not None:
            return relative > options.sensitivity_threshold
        among = relative.masked_fill(~window[:, 0], torch.nan)
        quantile = options.sensitivity_quantile
        return relative > torch.nanquantile(among, quantile, dim=-1, keepdim=True)


def _slots_of(chosen: Marks, positions: Positions, longest: int) -> Int[Tensor, "N G longest"]:
    """Return the chosen slots in ascending position, at the end of a row of ``longest``."""
    place = torch.where(chosen, positions, -1)
    return place.argsort(dim=-1, stable=True)[:, :, positions.shape[-1] - longest :]


def quantize_entries(
    cache: LayerCache, entries: Marks, key_bits: int, value_bits: int, group: int
) -> None:
    """Lower the precision of entries; an entry that is stored at fewer bits already stays so."""
    assert cache.mixed is not None
    for storage, bits in zip(cache.mixed, (key_bits, value_bits), strict=True):
        if bits < FULL_BITS:
            chosen = entries & (storage.bits() > bits)
            longest = int(chosen.sum(dim=-1).max())
            slots = _slots_of(chosen, cache.positions, longest)
            used = chosen.gather(-1, slots)
            storage.quantize_tokens(torch.where(used, slots, EMPTY), bits, group)
