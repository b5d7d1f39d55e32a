"""The work of rating entries: what each score reads once more, and what it computes of it.

Work is counted for kernels that do one thing in one pass: a score that needs attention
probabilities is handed them by the attention kernel, numbers of a score are float32, keys and
values 16 bits.
"""

from dataclasses import dataclass
from functools import singledispatch
from math import log2

from jaxtyping import Float, Int

from kvlab.reference.methods.ahakv import SharpenedRecentAttention
from kvlab.reference.methods.caote import EvictionError
from kvlab.reference.methods.desirekv import Importance
from kvlab.reference.methods.knorm import KeyNorm
from kvlab.reference.methods.nacl import ProxyAndSample
from kvlab.reference.methods.rkv import ImportanceMinusRedundancy
from kvlab.reference.methods.rpc import SelectorAttention
from kvlab.reference.methods.snapkv import WindowAttention
from kvlab.reference.methods.value_norm import ValueLength
from kvlab.reference.notation import Array
from kvlab.reference.policy import Around, Score

NUMBER = 4
"""Bytes of a score, a probability or a position."""
ELEMENT = 2
"""Bytes of an element of a key or value."""

Count = int | float | Float[Array, "..."] | Int[Array, "..."]
"""A number, or one for each of several steps."""


@dataclass(frozen=True)
class Work:
    """Bytes read and written, and floating-point operations."""

    bytes: Count = 0
    flops: Count = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.bytes + other.bytes, self.flops + other.flops)


@dataclass(frozen=True)
class Sizes:
    """The sizes on which the work for one KV head depends."""

    n: int | Int[Array, " steps"]
    """Entries; at each of several steps, if it is an array."""
    rho: int
    """Query heads that share the KV head."""
    d: int
    """Channels."""
    prompt: int = 0
    """Tokens of the prompt."""


@singledispatch
def rating(score: Score, sizes: Sizes) -> Work:
    """Return the work of rating the entries of one KV head once.

    A score that is not named below costs one pass over its columns, or over the last token's
    probabilities where it has none.
    """
    numbers = len(score.columns) or sizes.rho
    return Work(NUMBER * sizes.n * (numbers + 1), sizes.n * numbers)


@rating.register
def _(score: Around, sizes: Sizes) -> Work:
    return rating(score.inner, sizes) + Work(2 * NUMBER * sizes.n, sizes.n)


@rating.register
def _(score: EvictionError, sizes: Sizes) -> Work:
    """Add the distance of every value to the output of every query head."""
    n, rho = sizes.n, sizes.rho
    distances = Work(ELEMENT * n * sizes.d + NUMBER * n * (rho + 1), 3 * rho * n * sizes.d)
    return rating(score.inner, sizes) + distances


@rating.register(KeyNorm)
@rating.register(ValueLength)
def _(score: Score, sizes: Sizes) -> Work:
    return _vectors(sizes, 2 * sizes.n * sizes.d)


@rating.register
def _(score: WindowAttention, sizes: Sizes) -> Work:
    return _window(sizes, score.options.window)


@rating.register
def _(score: SelectorAttention, sizes: Sizes) -> Work:
    return _window(sizes, score.options.selector)


@rating.register
def _(score: ProxyAndSample, sizes: Sizes) -> Work:
    return _window(sizes, score.proxies(sizes.prompt))


@rating.register
def _(score: ImportanceMinusRedundancy, sizes: Sizes) -> Work:
    """Add the cosine similarity of every pair of keys, n²·d, to the window's attention."""
    similarity = Work(ELEMENT * sizes.n * sizes.d, 2 * sizes.n**2 * sizes.d)
    return _window(sizes, score.options.window) + similarity


@rating.register
def _(score: SharpenedRecentAttention, sizes: Sizes) -> Work:
    """Add the norms of the values to the attention of the recent rows."""
    return _window(sizes, score.options.recent) + _vectors(sizes, 2 * sizes.n * sizes.d)


@rating.register
def _(score: Importance, sizes: Sizes) -> Work:
    """Add the sensitivity to the window's attention: the channels of every key are sorted."""
    sensitivity = _vectors(sizes, sizes.n * sizes.d * log2(sizes.d))
    return _window(sizes, score.options.selector) + sensitivity


def _window(sizes: Sizes, queries: int) -> Work:
    """Return the work of attention of several queries to all entries: softmax(Q Kᵀ), summed."""
    logits = sizes.rho * queries * sizes.n
    return _vectors(sizes, logits * (2 * sizes.d + 5))


def _vectors(sizes: Sizes, flops: Count) -> Work:
    """Return the work of reading one vector per entry, and writing one number per entry."""
    return Work(ELEMENT * sizes.n * sizes.d + NUMBER * sizes.n, flops)
