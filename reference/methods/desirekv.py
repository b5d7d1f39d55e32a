"""DesireKV: importance, sensitivity, and tokens after a moment of doubt (AAAI 2026).

Equations of the paper: 3 (importance: mean attention of the last R queries; their softmax is in
``windows.window_attention``), 4 (smoothing), 5-8 (sensitivity), 9 (confidence: the largest
probability when a token is chosen, which ``generate.py`` notes; here it is compared with λ).

Quadrants of Fig. 3: Q1 (neither important nor sensitive) and Q4 (sensitive, not important) are
evicted, Q2 (important, not sensitive) keeps ``low_bits``, Q3 (both) keeps ``high_bits``. Protected
tokens are treated as Q3.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from kvlab.reference.cache import LayerCache, State
from kvlab.reference.checks import check_choice
from kvlab.reference.method import Example, Method
from kvlab.reference.methods.rpc import RPC
from kvlab.reference.notation import Array, KeepSet, Marks, Scores, Vectors
from kvlab.reference.observation import NO_ATTENTION, Clock, Float, Observation
from kvlab.reference.policy import (
    Budget,
    Entries,
    EveryGenerated,
    Policy,
    Precision,
    Protect,
    Score,
    Stored,
)
from kvlab.reference.quantization import FULL_BITS, WIDTHS, OutlierMean
from kvlab.reference.stored_vectors import TokenGroups
from kvlab.reference.windows import (
    Border,
    among_candidates,
    mean_pool,
    remember_queries,
    window_attention,
)

BEFORE_ALL = 2.0
"""More than any attention, of which no token gets more than 1."""


def decision_window(options: "DesireKV", seen: Observation) -> Marks:
    """Mark the P generated tokens before the selector, [t − R − P, t − R) at an event.

    It is these tokens, and no others, that protection, score and precision are about. A block that
    passes several events decides about all their windows; ``scope = all`` starts at the first
    generated token.
    """
    before, passed = events(options, seen.clock)
    clock, interval = seen.clock, options.interval
    last = clock.prompt + passed * interval
    first = clock.prompt + (before * interval if options.scope == "window" else 0)
    return (seen.positions >= first) & (seen.positions < last)


def events(options: "DesireKV", clock: Clock) -> tuple[int, int]:
    """Count the events before this block, and those up to its end."""
    passed = (clock.generated - options.selector) // options.interval
    before = max(0, (clock.generated_before - options.selector) // options.interval)
    return before, max(before, passed)


def doubtful(options: "DesireKV", seen: Observation, window: Marks) -> Marks:
    """Mark the window's entries whose predecessor was produced without confidence."""
    if options.protection == "none":
        return np.zeros_like(window)
    before = seen.positions - options.doubt_shift
    known = np.where(before >= 0, seen.confidence[np.maximum(before, 0)], np.nan)
    limit = options.doubt_threshold
    if limit is None:
        present = known[0][window[0] & ~np.isnan(known[0])]
        limit = np.quantile(present, options.doubt_quantile) if present.size else -np.inf
    return window & (known < limit)  # [DesireKV Eq. 9, protection]


def importance(options: "DesireKV", state: State, seen: Observation, window: Marks) -> Scores:
    """Pooled attention of the selector window."""
    if options.importance == "random":
        return random_scores(seen, options.seed)
    over = window if options.normalize_over == "candidates" else None
    attention = window_attention(state, seen, options.selector, over)
    raw = np.tile(attention.mean(axis=(0, 1, 2)), (len(window), 1))  # [DesireKV 3]
    kernel = 2 * options.radius + 1
    return among_candidates(raw, window, mean_pool, kernel, options.border)  # [DesireKV 4]


def outlier_score(
    block: Float[Array, "*rows g"], over: OutlierMean = "outliers"
) -> Float[Array, "*rows"]:
    """Mean distance of a block's outliers to its mean; 0 without outliers."""
    first, third = np.quantile(block, [0.25, 0.75], axis=-1, keepdims=True)
    reach = 1.5 * (third - first)
    outlier = (block < first - reach) | (block > third + reach)  # [DesireKV 6]
    distance = np.abs(block - block.mean(axis=-1, keepdims=True))
    total = np.where(outlier, distance, 0.0).sum(axis=-1)
    count = outlier.sum(axis=-1) if over == "outliers" else block.shape[-1]
    return np.asarray(total / np.maximum(count, 1))  # [DesireKV OutlierScore]


def sensitivity(
    keys: Vectors, window: Marks, group: int, over: OutlierMean = "outliers"
) -> Float[Array, " n"]:
    """Quantisation sensitivity of each token in one layer, relative to the window's largest."""
    d = keys.shape[-1]
    blocks = [keys[..., start : start + group] for start in range(0, d, group)]  # [DesireKV 5]
    per_block = np.stack([outlier_score(block, over) for block in blocks])
    per_token = per_block.mean(axis=(0, 1))  # [DesireKV 7]
    largest = per_token[window[0]].max(initial=0.0)
    return per_token / largest if largest > 0 else np.zeros_like(per_token)  # [DesireKV 8]


def sensitive(
    options: "DesireKV", state: State, seen: Observation, window: Marks, in_doubt: Marks
) -> Marks:
    """Mark the tokens above the threshold, or above the quantile of the window."""
    if options.sensitivity == "random":
        relative = random_scores(seen, options.seed + 1)[0]
    elif options.sensitivity == "attention":
        rated = importance(options, state, seen, window)
        relative = np.where(in_doubt, BEFORE_ALL, rated)[0]
    else:
        relative = sensitivity(seen.keys, window, options.group, options.outlier_mean)
    limit = options.sensitivity_threshold
    if limit is None:
        decided = relative[window[0]]
        limit = np.quantile(decided, options.sensitivity_quantile) if decided.size else np.inf
    return np.tile(relative > limit, (len(window), 1))


def random_scores(seen: Observation, seed: int) -> Scores:
    """Draw one value per token and layer, for the ablations."""
    rng = np.random.default_rng([seed, seen.layer, seen.clock.seen])
    return np.tile(rng.random(seen.positions.shape[1]), (len(seen.positions), 1))


# --- the answers ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutsideWindow(Protect):
    """Everything that the event does not decide about; on request also the doubtful tokens."""

    options: "DesireKV"
    doubtful_too: bool

    def protected(self, seen: Observation) -> Marks:
        window = decision_window(self.options, seen)
        return ~window | doubtful(self.options, seen, window) if self.doubtful_too else ~window

    def count(self, prompt: int) -> int:
        return prompt + self.options.selector


@dataclass(frozen=True)
class Importance(Score):
    """Pooled attention of the selector window, one value per token and layer."""

    options: "DesireKV"

    needs = NO_ATTENTION
    joins_kv_heads = True

    def observe(self, state: State, seen: Observation) -> State:
        return remember_queries(state, seen, self.options.selector)

    def score(self, state: State, seen: Observation, candidates: Marks, room: int) -> Scores:
        return importance(self.options, state, seen, decision_window(self.options, seen))


@dataclass(frozen=True)
class ShareOfWindow(Budget):
    """The important half of a window, or another share of it."""

    options: "DesireKV"

    def room(self, seen: Observation, protected: Marks) -> int:
        return int((~protected[0]).sum() * (1 - self.options.importance_quantile))


@dataclass(frozen=True)
class BitsBySensitivity(Precision):
    """Sensitive or doubtful entries at ``high_bits``, other important ones at ``low_bits``."""

    options: "DesireKV"

    def store(self, cache: LayerCache, seen: Observation, keep: KeepSet) -> Stored:
        """One event: keep the important and the doubtful tokens, and quantise those of the window.

        ``keep`` has the important ones, and all that the event does not decide about.
        """
        options = self.options
        window = decision_window(options, seen)
        in_doubt = doubtful(options, seen, window)
        kept = np.zeros_like(window)
        np.put_along_axis(kept, keep, True, axis=-1)
        kept |= in_doubt
        high = window & (sensitive(options, cache.state, seen, window, in_doubt) | in_doubt)
        for tier, bits in ((high, options.high_bits), (~high, options.low_bits)):  # Q3, then Q2
            chosen = kept & window & tier
            cache = quantize_entries(cache, chosen, bits, options.value_bits or bits, options.group)
        return cache, np.nonzero(kept)[1].reshape(len(kept), -1)


def quantize_entries(
    cache: LayerCache, entries: Marks, key_bits: int, value_bits: int, group: int
) -> LayerCache:
    """Lower the precision of entries; an entry that is stored at fewer bits already stays so."""
    keys, values = cache.keys, cache.values
    if key_bits < FULL_BITS:
        keys = keys.encode(TokenGroups(key_bits, group), entries & (keys.bits > key_bits))
    if value_bits < FULL_BITS:
        values = values.encode(TokenGroups(value_bits, group), entries & (values.bits > value_bits))
    return replace(cache, keys=keys, values=values)


@dataclass(frozen=True)
class DesireKV(Method):
    """Evict what is unimportant, and give bits to what is sensitive or follows a doubt."""

    interval: int = RPC.interval
    """Generated tokens P between two events."""
    selector: int = RPC.selector
    """Newest queries R that decide, and are kept."""
    radius: int = 3
    """Half-width w of the pooling."""
    border: Border = "zero"
    """What lies beyond the border of the pooling: zeros, or nothing (``shrink``)."""
    normalize_over: Literal["candidates", "present"] = "candidates"
    """Keys over which the selector's softmax runs."""
    scope: Literal["window", "all"] = "window"
    """``window``: decide once about each P entries; ``all``: about all generated ones again."""
    low_bits: int = 4
    """Bits of important entries that are not sensitive; 16: not quantised."""
    high_bits: int = 8
    """Bits of sensitive and of doubtful entries; 16: not quantised."""
    value_bits: int | None = None
    """Bits of values; None: those of the entry's key."""
    group: int = 64
    """Channels of a block of Eq. 5, and of those that share a scale."""
    importance_quantile: float = 0.5
    """Share of the window that is unimportant."""
    sensitivity_quantile: float = 0.5
    """Share of the window that is not sensitive."""
    sensitivity_threshold: float | None = None
    """Absolute threshold of the relative sensitivity, instead of the quantile."""
    outlier_mean: OutlierMean = "outliers"
    """Average the distances over the outliers, or over the block so that their number counts."""
    doubt_quantile: float = 0.1
    """Share of the window's least confident steps after which tokens are protected."""
    doubt_threshold: float | None = None
    """Absolute confidence λ, instead of the quantile."""
    doubt_shift: Literal[0, 1] = 1
    """1: the token after the unconfident token is protected; 0: the unconfident token itself."""
    importance: Literal["attention", "random"] = "attention"
    """``random``: the ablation DesireKV-I."""
    sensitivity: Literal["outliers", "attention", "random"] = "outliers"
    """``attention``: importance stands for it, and doubtful tokens take the places of the least
    important, as in Table 2; ``random``: the ablation DesireKV-S."""
    protection: Literal["confidence", "none"] = "confidence"
    """``none``: the ablation DesireKV-P."""
    seed: int = 0
    """Seed of the ablations' draws."""

    name = "desirekv"
    source = "Cheng et al., DesireKV, AAAI 2026, vol. 40, pp. 20518-20526, §4"
    published = "2026-01"
    equations = tuple(f"DesireKV {number}" for number in range(3, 10))
    budgeted = False
    limits = {"radius": 0, "seed": 0, "group": 1} | dict.fromkeys(
        ("importance_quantile", "sensitivity_quantile", "doubt_quantile"), (0, 1)
    )
    examples = (
        Example("desirekv@interval=6,selector=3,group=4", None),
        Example("desirekv@interval=6,selector=3,group=4,doubt_shift=0", None, shared=False),
        Example("desirekv@interval=6,selector=3,group=4,scope=all", None),
        Example("desirekv@interval=6,selector=3,low_bits=16,high_bits=16", None),
    )
    compared = ("desirekv@interval=32,selector=8,group=32",)
    variants = {
        "desirekv-i": "desirekv@importance=random",
        "desirekv-s": "desirekv@sensitivity=random",
        "desirekv-p": "desirekv@protection=none",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        widths = (*WIDTHS, FULL_BITS)
        check_choice(widths, low_bits=self.low_bits, high_bits=self.high_bits)
        check_choice((None, *widths), value_bits=self.value_bits)

    def policy(self, budget: int | None = None) -> Policy:
        if budget is not None and self.scope != "all":
            raise ValueError("desirekv takes a budget only with scope = 'all'")
        schedule = EveryGenerated(self.interval, self.selector)
        protect = OutsideWindow(self, doubtful_too=budget is not None)
        kept = ShareOfWindow(self) if budget is None else Entries(budget)
        stored = BitsBySensitivity(self)
        return Policy(self.name, Importance(self), schedule, protect, kept, stored)
