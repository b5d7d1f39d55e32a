"""Streams of tokens as one layer sees them, and runs of a policy over a stream.

Drawn numbers are the same bits on every machine: they come from the raw output of a bit generator,
whose stream NumPy guarantees, by integer arithmetic alone; distributions of NumPy are promised for
one version only.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvlab.reference.notation import Array, Bool, Float, Int, RowVectors
from kvlab.reference.observation import Clock, Rotate
from kvlab.reference.policy import Policy
from kvlab.reference.step import Block, StepResult, empty_cache, step
from kvlab.reference.transformer import turn


@dataclass(frozen=True)
class Stream:
    """Queries, keys and values of one layer, and the blocks in which they arrive."""

    queries: Float[Array, "G rho t d"]
    keys: Float[Array, "G t d"]
    values: Float[Array, "G t d"]
    confidence: Float[Array, " t"]
    """Largest probability of the distribution that produced each token; NaN for given tokens."""
    prompt: int
    """Tokens of the prompt, counted from token 0 even where ``first`` is not 0."""
    blocks: tuple[int, ...]
    """Tokens of each block."""
    first: int = 0
    """Position of the first token; if it is not 0, all tokens before it were evicted."""
    softcap: float | None = None
    """Bound of the model's attention logits, if it has one."""
    layer: int = 0
    """Number of the layer; policies that draw at random depend on it."""
    layers: int = 1
    """Layers of the model."""
    rotate: Rotate | None = None
    """A rotary embedding, for scores that read it."""

    @property
    def tokens(self) -> int:
        """Tokens t of the stream."""
        return self.keys.shape[1]

    def heads(self, order: Sequence[int] | Int[Array, " G"]) -> "Stream":
        """Return the stream with its KV heads in another order."""
        vectors = ("queries", "keys", "values")
        return replace(self, **{name: getattr(self, name)[np.asarray(order)] for name in vectors})

    def pieces(self) -> Iterator[Block]:
        """Yield the blocks, in float64."""
        confidence = np.concatenate([np.full(self.first, np.nan), self.confidence])
        last = 0
        for length in self.blocks:
            piece = slice(last, last + length)
            last += length
            yield Block(
                Clock(self.first + last, length, self.prompt),
                self.layer,
                np.asarray(self.queries[:, :, piece], np.float64),
                np.asarray(self.keys[:, piece], np.float64),
                np.asarray(self.values[:, piece], np.float64),
                confidence[: self.first + last],
                self.rotate,
                softcap=self.softcap,
                layers=self.layers,
            )


def block_lengths(prompt: int, generated: int, size: int | None) -> tuple[int, ...]:
    """Return each block's length: the prompt's, of ``size`` or in one, then generated tokens."""
    size = size or max(1, prompt)
    lengths = (min(size, prompt - first) for first in range(0, prompt, size))
    return (*lengths, *[1] * generated)


def run_stream(policy: Policy, stream: Stream) -> Iterator[StepResult]:
    """Run a policy in one layer over a stream; yield the result of every step.

    Raises:
        ValueError: if the policy cannot work with the stream's prompt.
    """
    policy.check(stream.prompt)
    cache = empty_cache(policy, len(stream.keys), stream.keys.shape[2])
    for block in stream.pieces():
        result = step(policy, cache, block)
        cache = result.cache
        yield result


class Source:
    """A stream of drawn arrays that a name and a number identify."""

    def __init__(self, name: str, attempt: int = 0) -> None:
        self._raw = np.random.PCG64([zlib.crc32(name.encode()), attempt])

    def bits(self, *shape: int) -> Int[Array, "..."]:
        """Draw 48 random bits per element."""
        count = int(np.prod(shape))
        return (self._raw.random_raw(count) >> np.uint64(16)).astype(np.int64).reshape(shape)

    def normal(self, *shape: int) -> Float[Array, "..."]:
        """Draw bell-shaped numbers, deviation 1.15, exact in bfloat16 and in float16."""
        return self._sum_of_four(6, shape) / 32

    def precise(self, *shape: int) -> Float[Array, "..."]:
        """Draw bell-shaped numbers, deviation 1.15, that need all 24 bits of float32."""
        return (self._sum_of_four(12, shape) * 1024 + self.integers(0, 1024, *shape)) / 2.0**21

    def integers(self, low: int, high: int, *shape: int) -> Int[Array, "..."]:
        """Draw whole numbers from ``low`` up to ``high`` − 1."""
        return low + self.bits(*shape) % (high - low)

    def uniform(self, *shape: int) -> Float[Array, "..."]:
        """Draw multiples of 1/128 between 0 and 1, both excluded."""
        return self.integers(1, 128, *shape) / 128

    def permutation(self, count: int) -> Int[Array, " {count}"]:
        """Draw an order of ``count`` things."""
        return np.argsort(self.bits(count), kind="stable")

    def marks(self, chosen: int, *shape: int) -> Bool[Array, "..."]:
        """Mark ``chosen`` elements of every row."""
        order = np.argsort(self.bits(*shape), axis=-1, kind="stable")
        return order < chosen

    def _sum_of_four(self, width: int, shape: tuple[int, ...]) -> Float[Array, "..."]:
        drawn, largest = self.bits(*shape), (1 << width) - 1
        parts = np.stack([(drawn >> (width * i)) & largest for i in range(4)])
        return (parts.sum(axis=0) - 2 * largest).astype(np.float64)


def random_stream(
    source: Source,
    G: int = 2,
    rho: int = 1,
    d: int = 8,
    prompt: int = 20,
    generated: int = 16,
    block: int | None = None,
    precise: bool = False,
) -> Stream:
    """Draw bell-shaped queries, keys and values; axes are those of `kvlab.reference.notation`.

    A block of the prompt has ``block`` tokens, or all of them. ``precise`` numbers need all digits
    of float32, not only those of 16 bits.
    """
    t, draw = prompt + generated, source.precise if precise else source.normal
    confidence = source.uniform(t)
    confidence[:prompt] = np.nan
    blocks = block_lengths(prompt, generated, block)
    vectors = 2 * draw(G, rho, t, d), draw(G, t, d), draw(G, t, d)
    return Stream(*vectors, confidence, prompt, blocks, rotate=rotary)


def rotary(vectors: RowVectors, positions: Int[Array, "..."]) -> RowVectors:
    """Turn channels c and c + d/2 of vectors by positions · 10000^(-2c/d), as most models do."""
    frequencies = 10000.0 ** (-np.arange(0, vectors.shape[-1], 2) / vectors.shape[-1])
    angles = positions[..., None] * frequencies
    return turn(vectors, (np.cos(angles), np.sin(angles)))
