"""The work of rating entries: what each score reads once more, and what it computes of it.

Work is counted for kernels that do one thing in one pass: a score that needs attention
probabilities is handed them by the attention kernel, numbers of a score are float32, keys and
values 16 bits.
"""

from dataclasses import dataclass
from math import log2

from jaxtyping import Float, Int

from kvlab.reference.methods.ahakv import SharpenedRecentAttention
from kvlab.reference.methods.caote import EvictionError
from kvlab.reference.methods.desirekv import Importance
from kvlab.reference.methods.expected_attention import AttentionToCome
from kvlab.reference.methods.knorm import KeyNorm
from kvlab.reference.methods.longflow import Contribution
from kvlab.reference.methods.nacl import ProxyAndSample
from kvlab.reference.methods.rkv import ImportanceMinusRedundancy
from kvlab.reference.methods.rpc import SelectorAttention
from kvlab.reference.methods.snapkv import WindowAttention
from kvlab.reference.methods.triattention import TrigonometricSeries
from kvlab.reference.methods.value_norm import ValueLength
from kvlab.reference.methods.vase import LargeValuesAndSample
from kvlab.reference.notation import Array
from kvlab.reference.policy import Around, Score

NUMBER = 4
"""Bytes of a score, a probability or a position."""
SLOT = 8
"""Bytes of the number of a slot, where the entries of a table are in no order."""
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


def rating(score: Score, sizes: Sizes) -> Work:
    """Return the work of rating the entries of one KV head once."""
    n, rho, d = sizes.n, sizes.rho, sizes.d
    match score:
        case EvictionError():  # the distance of every value to the output of every query head
            distances = Work(ELEMENT * n * d + NUMBER * n * (rho + 1), 3 * rho * n * d)
            return rating(score.inner, sizes) + distances
        case Around():
            return rating(score.inner, sizes) + Work(2 * NUMBER * n, n)
        case KeyNorm() | ValueLength():
            return _vectors(sizes, 2 * n * d)
        case WindowAttention() | SelectorAttention() | ProxyAndSample():
            return _window(sizes, _queries(score, sizes.prompt))
        case ImportanceMinusRedundancy():  # the cosine similarity of every pair of keys, n²·d
            return _window(sizes, score.options.window) + Work(ELEMENT * n * d, 2 * n**2 * d)
        case SharpenedRecentAttention():  # and the norms of the values
            return _window(sizes, score.options.recent) + _vectors(sizes, 2 * n * d)
        case Importance():  # and the sensitivity: the channels of every key are sorted
            return _window(sizes, score.options.selector) + _vectors(sizes, n * d * log2(d))
        case AttentionToCome():  # k·μ and kᵀΣk in every query head, and the norms of the values
            lengths = rho * (d + 1) if score.needs.projection else 1  # (vW)·v, W = W_O W_Oᵀ
            return _vectors(sizes, rho * n * 2 * d * (d + 2)) + _vectors(sizes, 2 * n * d * lengths)
        case TrigonometricSeries():  # two dot products in every query head
            return _vectors(sizes, 4 * rho * n * d)
    # One pass over its columns, or over the last token's probabilities where it has none.
    numbers = len(score.columns) or rho
    return Work(NUMBER * n * (numbers + 1), n * numbers)


def remembered(score: Score, sizes: Sizes, seen: int) -> int:
    """Return the numbers that a score remembers of ``seen`` tokens for one KV head."""
    rho, d = sizes.rho, sizes.d
    match score:
        case Around():
            return remembered(score.inner, sizes, seen)
        case TrigonometricSeries() | AttentionToCome() if score.options.statistics:
            return 0  # they are in a file
        case TrigonometricSeries():  # sums of the prompt's queries and lengths, and their number
            return rho * (2 * d + 1)
        case AttentionToCome() if seen <= sizes.prompt:  # moments of second order
            return rho * (d + 1) ** 2
        case AttentionToCome():
            return min(score.options.buffer, seen - sizes.prompt) * rho * d
        case Contribution() if seen > sizes.prompt:
            return 0
    return min(_queries(score, sizes.prompt), seen) * rho * d


def _queries(score: Score, prompt: int) -> int:
    """Return how many queries decide, where they are the newest ones."""
    match score:
        case WindowAttention() | ImportanceMinusRedundancy():
            return score.options.window
        case SelectorAttention() | Importance():
            return score.options.selector
        case Contribution() | LargeValuesAndSample():
            return score.window
        case SharpenedRecentAttention() if score.options.accumulation == "recent":
            return score.options.recent
        case ProxyAndSample():
            return score.proxies(prompt)
    return 0


def _window(sizes: Sizes, queries: int) -> Work:
    """Return the work of attention of several queries to all entries: softmax(Q Kᵀ), summed."""
    return _vectors(sizes, sizes.rho * queries * sizes.n * (2 * sizes.d + 5))


def _vectors(sizes: Sizes, flops: Count) -> Work:
    """Return the work of reading one vector per entry, and writing one number per entry."""
    return Work(ELEMENT * sizes.n * sizes.d + NUMBER * sizes.n, flops)
