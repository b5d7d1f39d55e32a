"""What a policy's decisions take: bytes moved and operations, per KV head.

Counted for kernels that do one thing in one pass: a score that needs attention probabilities is
handed them by the attention kernel, numbers of a score are float32, keys and values 16 bits.
"""

from dataclasses import dataclass
from functools import singledispatch
from math import log2

from kvlab.reference.methods.ahakv import SharpenedRecentAttention
from kvlab.reference.methods.caote import EvictionError
from kvlab.reference.methods.desirekv import Importance
from kvlab.reference.methods.nacl import ProxyAndSample, proxy_count
from kvlab.reference.methods.rkv import ImportanceMinusRedundancy
from kvlab.reference.methods.rpc import SelectorAttention
from kvlab.reference.methods.snapkv import WindowAttention
from kvlab.reference.policy import Score

NUMBER = 4
"""Bytes of a score, a probability or a position."""
ELEMENT = 2
"""Bytes of an element of a key or value."""


@dataclass(frozen=True)
class Work:
    """Bytes read and written, and floating-point operations."""

    bytes: int | float = 0
    flops: int | float = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.bytes + other.bytes, self.flops + other.flops)


@dataclass(frozen=True)
class Sizes:
    """Of one KV head: entries n, query heads per KV head ρ, channels d, prompt."""

    n: int
    rho: int
    d: int
    prompt: int = 0


def observing(score: Score, sizes: Sizes) -> Work:
    """Return what it takes to update a score's state after one token.

    A score that keeps numbers per entry reads the token's probabilities, and reads and writes them.
    """
    if not score.columns:
        return Work()
    n, columns = sizes.n, len(score.columns)
    return Work(NUMBER * n * (sizes.rho + 2 * columns), n * (sizes.rho + 2 * columns))


def selecting(sizes: Sizes, several: bool) -> Work:
    """Return what it takes to find who goes, once scores are there.

    One entry is found by looking through all; several by sorting, n·log2(n) comparisons.
    """
    n = sizes.n
    comparisons = n * log2(n) if several and n > 1 else n
    return Work(2 * NUMBER * n, comparisons)


def moving(score: Score, sizes: Sizes, kept: int) -> Work:
    """Return what it takes to move the survivors together: every one is read and written."""
    row = 2 * sizes.d * ELEMENT + NUMBER * (1 + len(score.columns))
    return Work(2 * kept * row)


def quantising(sizes: Sizes, entries: int) -> Work:
    """Return what it takes to store entries at fewer bits: read wide, minimum, maximum, round.

    Codes and scales are written at half of the wide bytes at most.
    """
    elements = 2 * entries * sizes.d
    return Work(1.5 * ELEMENT * elements, 6 * elements)


@singledispatch
def scoring(score: Score, sizes: Sizes) -> Work:
    """Return what it takes to rate all entries at a due step.

    By default a pass over the state, or over the last token's probabilities.
    """
    columns = len(score.columns) or sizes.rho
    return Work(NUMBER * sizes.n * (columns + 1), sizes.n * columns)


def window_attention(sizes: Sizes, queries: int) -> Work:
    """Attention of several queries to all entries, computed anew: softmax(Q Kᵀ), summed."""
    logits = sizes.rho * queries * sizes.n
    return Work(ELEMENT * sizes.n * sizes.d + NUMBER * sizes.n, logits * (2 * sizes.d + 5))


@scoring.register
def _(score: WindowAttention, sizes: Sizes) -> Work:
    return window_attention(sizes, score.window)


@scoring.register
def _(score: SelectorAttention, sizes: Sizes) -> Work:
    return window_attention(sizes, score.selector)


@scoring.register
def _(score: Importance, sizes: Sizes) -> Work:
    """With the outlier score: quartiles by sorting the channels of every key."""
    n, d = sizes.n, sizes.d
    sensitivity = Work(ELEMENT * n * d + NUMBER * n, n * d * log2(d))
    return window_attention(sizes, score.window.selector) + sensitivity


@scoring.register
def _(score: ProxyAndSample, sizes: Sizes) -> Work:
    return window_attention(sizes, proxy_count(score.proxy_share, sizes.prompt))


@scoring.register
def _(score: ImportanceMinusRedundancy, sizes: Sizes) -> Work:
    """With the cosine similarity of every pair of keys, n² · d."""
    n, d = sizes.n, sizes.d
    return window_attention(sizes, score.window) + Work(ELEMENT * n * d, 2 * n * n * d)


@scoring.register
def _(score: SharpenedRecentAttention, sizes: Sizes) -> Work:
    """With the norms of the values."""
    n, d = sizes.n, sizes.d
    prior = Work(ELEMENT * n * d + NUMBER * n, 2 * n * d)
    return window_attention(sizes, score.rows) + prior


@scoring.register
def _(score: EvictionError, sizes: Sizes) -> Work:
    """The base score, and the distance of every value to the output of every query head."""
    n, d = sizes.n, sizes.d
    distances = Work(ELEMENT * n * d + NUMBER * n * (sizes.rho + 1), 3 * sizes.rho * n * d)
    return scoring(score.base, sizes) + distances
