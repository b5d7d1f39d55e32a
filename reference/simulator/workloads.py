"""Synthetic traces whose attention is known exactly, and so the entries that are needed later.

A workload starts from the logits that it wants. Keys are the rows of √d times a random rotation of
d = t channels, so that they look like any Gaussian keys; a query is the wanted row of logits,
turned by the same rotation. Then q·k/√d is the wanted logit, to rounding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float

from kvlab.reference.attention import softmax
from kvlab.reference.notation import Array
from kvlab.reference.simulator.trace import Metadata, Trace

LOUD = 8.0
"""Logit of an entry that is attended to, above a background of 0: 3000 times the weight."""


@dataclass(frozen=True)
class Workload:
    """A trace of one layer and one head, and what is known about it."""

    trace: Trace
    logits: Float[Array, "t t"]
    """Wanted logits; only those at or below the diagonal are visible."""
    facts: Mapping[str, Array] = field(default_factory=dict)
    """Known facts by name; the docstring of the workload's function lists them."""

    @property
    def attention(self) -> Float[Array, "t t"]:
        """Causal softmax of the logits."""
        return softmax(self.logits, np.tril(np.ones(self.logits.shape, dtype=bool)))


def workload(
    name: str,
    logits: Float[Array, "t t"],
    prompt: int,
    seed: int,
    values: Float[Array, "t d"] | None = None,
    **facts: Array,
) -> Workload:
    """Build the trace for wanted logits, query by key; values are Gaussian unless they are given.

    The seed is that of the rotation, and of the values. ``facts`` are what is known.
    """
    t = len(logits)
    if logits.shape != (t, t) or not 1 <= prompt < t:
        raise ValueError(
            f"logits {logits.shape} must be square, and prompt = {prompt} between 1 and {t - 1}"
        )
    rng = np.random.default_rng(seed)
    keys = np.sqrt(t) * _rotation(t, rng)
    queries = logits @ keys / np.sqrt(t)
    if values is None:
        values = rng.normal(size=(t, t))
    trace = Trace(
        queries=queries[None, None, None],
        keys=keys[None, None],
        values=np.asarray(values)[None, None],
        positions=np.arange(t),
        tokens=np.zeros(t, dtype=np.int64),
        prompt=prompt,
        confidence=np.full(t, np.nan),
        metadata=Metadata(model=f"workload {name}", layers=(0,)),
    )
    return Workload(trace, logits, facts)


def _rotation(size: int, rng: np.random.Generator) -> Float[Array, "size size"]:
    q, r = np.linalg.qr(rng.normal(size=(size, size)))
    return q * np.sign(np.diag(r))


def _local_band(tokens: int, width: float) -> Float[Array, "t t"]:
    distance = np.arange(tokens)[:, None] - np.arange(tokens)
    return LOUD * np.exp(-np.maximum(distance, 0) / width)


def periodic_recurrence(
    tokens: int = 512,
    prompt: int = 16,
    recurring: int = 32,
    bound: int = 64,
    share: float = 0.8,
    filler_uses: int = 5,
    filler_interval: int = 8,
    self_attention: bool = False,
    seed: int = 0,
) -> Workload:
    """Entries that matter again and again, each at its own interval (LazyEviction Fig. 3c).

    Recurring entries are attended to at birth + k·interval, for ever; ``share`` of the intervals
    are at most ``bound``, the others up to twice as long. All other entries are fillers: they are
    attended to ``filler_uses`` times, ``filler_interval`` steps apart, and never again. With
    ``self_attention`` every token also looks at itself.

    Facts: ``recurring`` (positions), ``intervals`` of these, and ``active`` ``[t, t]``: whether a
    query (row) attends to an entry (column).
    """
    rng = np.random.default_rng(seed)
    kept = np.sort(prompt + rng.permutation(tokens // 2)[:recurring])
    short = round(share * recurring)
    intervals = np.concatenate(
        [
            rng.integers(bound // 2, bound + 1, size=short),
            rng.integers(bound + 1, 2 * bound + 1, size=recurring - short),
        ]
    )
    rng.shuffle(intervals)
    active = np.zeros((tokens, tokens), dtype=bool)
    for place in range(tokens):
        active[place + filler_interval :: filler_interval, place][:filler_uses] = True
    active[:, kept] = False
    for place, interval in zip(kept, intervals, strict=True):
        active[place + interval :: interval, place] = True
    if self_attention:
        np.fill_diagonal(active, True)
    return workload(
        "periodic_recurrence",
        LOUD * active,
        prompt,
        seed,
        recurring=kept,
        intervals=intervals,
        active=active,
    )


def pure_recency(tokens: int = 384, prompt: int = 64, width: float = 12, seed: int = 0) -> Workload:
    """Attention that depends on the distance alone: nothing old is ever needed."""
    return workload("pure_recency", _local_band(tokens, width), prompt, seed)


def sinks(
    tokens: int = 384, prompt: int = 64, count: int = 4, mass: float = 0.5, seed: int = 0
) -> Workload:
    """The first entries draw a fixed share of all attention, wherever the query stands.

    Facts: ``sinks`` (positions).
    """
    first = np.arange(count)
    logits = _local_band(tokens, 12)
    for i in range(count, tokens):
        rest = np.log(np.exp(logits[i, count : i + 1]).sum())
        logits[i, :count] = rest + np.log(mass / (1 - mass) / count)
    return workload("sinks", logits, prompt, seed, sinks=first)


def needles(
    tokens: int = 384,
    prompt: int = 256,
    depths: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9),
    seed: int = 0,
) -> Workload:
    """Entries of the prompt, at chosen depths, that nobody looks at before the last 16 tokens.

    Facts: ``needles`` (positions).
    """
    places = np.array([int(depth * prompt) for depth in depths])
    logits = _local_band(tokens, 12)
    logits[:, places] = np.where(np.eye(tokens)[:, places] > 0, LOUD, 0.0)
    logits[-16:, places] = LOUD + 2
    return workload("needles", logits, prompt, seed, needles=places)


def exchangeable(tokens: int = 384, prompt: int = 320, seed: int = 0) -> Workload:
    """Independent Gaussian logits: no entry is more important than another (AhaKV's assumption)."""
    logits = np.random.default_rng(seed).normal(size=(tokens, tokens))
    return workload("exchangeable", logits, prompt, seed)


def varying_values(
    tokens: int = 256, prompt: int = 64, spread: float = 1.0, seed: int = 0
) -> Workload:
    """Lasting importance of entries, and values whose sizes vary independently of it (CAOTE).

    Facts: ``importance`` (logit of each entry) and ``sizes`` (norm of each value).
    """
    rng = np.random.default_rng(seed)
    importance, sizes = rng.normal(size=tokens), np.exp(spread * rng.normal(size=tokens))
    noise = 0.3 * rng.normal(size=(tokens, tokens))
    directions = rng.normal(size=(tokens, tokens))
    values = sizes[:, None] * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    return workload(
        "varying_values",
        importance + noise,
        prompt,
        seed,
        values=values,
        importance=importance,
        sizes=sizes,
    )


def key_outliers(tokens: int = 384, prompt: int = 64, seed: int = 0) -> Workload:
    """Keys of which a quarter holds outliers, whatever their importance (DesireKV Fig. 3).

    Outliers are ±60 and lie in channels that no query reads, so that they do not change the logits.

    Facts: ``outliers`` (keys that have some) and ``importance`` (logit of each entry).
    """
    rng = np.random.default_rng(seed)
    importance = rng.normal(size=tokens)
    chosen: Bool[Array, " t"] = np.zeros(tokens, dtype=bool)
    chosen[rng.permutation(tokens)[: round(tokens / 4)]] = True
    logits = importance + 0.3 * rng.normal(size=(tokens, tokens))
    plain = workload("key_outliers", logits, prompt, seed)
    keys, queries = plain.trace.keys.copy(), plain.trace.queries.copy()
    unread = np.arange(0, tokens, 64)
    wanted = queries[0, 0, 0] @ keys[0, 0].T
    queries[..., unread] = 0.0
    keys[..., unread] = 0.0
    keys[0, 0][np.ix_(chosen, unread)] = rng.choice([-60.0, 60.0], (chosen.sum(), len(unread)))
    readable = np.delete(np.arange(tokens), unread)
    closest = np.linalg.lstsq(keys[0, 0][:, readable], wanted.T, rcond=None)[0]
    queries[0, 0, 0][:, readable] = closest.T
    achieved: Float[Array, "t t"] = queries[0, 0, 0] @ keys[0, 0].T / np.sqrt(tokens)
    trace = replace(plain.trace, queries=queries, keys=keys)
    return Workload(trace, achieved, {"outliers": chosen, "importance": importance})
