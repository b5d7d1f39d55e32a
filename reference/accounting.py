"""The cost of a policy, counted without a model: work of a decision, bits of the entries.

Work is counted for kernels that do one thing in one pass: a score that needs attention
probabilities is handed them by the attention kernel, numbers of a score are float32, keys and
values 16 bits.
"""

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from jaxtyping import Float, Int, Real

from kvlab.reference.notation import Array
from kvlab.reference.quantization import FULL_BITS

NUMBER = 4
"""Bytes of a score, a probability or a position."""
ELEMENT = 2
"""Bytes of an element of a key or value."""
SCALE_AND_ZERO = 32
"""Bits that a group of quantised elements takes besides its codes."""


ENTRIES = (
    "entries: kept per KV head after a step, mean over the layers, at its most from the last token "
    "of the prompt on"
)
"""What plan, compare, simulate, perplexity and reports mean by entries: `most_entries`."""


def most_entries(kept: Real[Array, "layers steps"]) -> float:
    """Return what tables call entries.

    Args:
        kept: entries per KV head that each layer keeps after each step, the first of which ends
            with the last token of the prompt.
    """
    return float(kept.mean(axis=0).max())


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


def window_work(sizes: Sizes, queries: int) -> Work:
    """Return the work of attention of several queries to all entries: softmax(Q Kᵀ), summed."""
    logits = sizes.rho * queries * sizes.n
    return vector_work(sizes, logits * (2 * sizes.d + 5))


def vector_work(sizes: Sizes, flops: Count) -> Work:
    """Return the work of reading one vector per entry, and writing one number per entry."""
    return Work(ELEMENT * sizes.n * sizes.d + NUMBER * sizes.n, flops)


@dataclass(frozen=True)
class StoredBits:
    """The entries of one KV head: where they come from, and the bits of their keys and values."""

    positions: Int[Array, " n"]
    keys: Float[Array, " n"]
    """Bits per element of each key, scales and zero points included."""
    values: Float[Array, " n"]

    def __len__(self) -> int:
        return len(self.positions)

    def append(self, positions: Int[Array, " m"], keys: float, values: float) -> "StoredBits":
        """Add tokens whose keys and values have so many bits per element."""
        m = len(positions)
        return StoredBits(
            np.concatenate([self.positions, positions]),
            np.concatenate([self.keys, np.full(m, float(keys))]),
            np.concatenate([self.values, np.full(m, float(values))]),
        )

    def lower(self, keys: Float[Array, " n"], values: Float[Array, " n"]) -> "StoredBits":
        """Store entries at these bits; an entry that has fewer bits already keeps them."""
        return replace(
            self, keys=np.minimum(self.keys, keys), values=np.minimum(self.values, values)
        )

    def take(self, keep: Int[Array, " kept"]) -> "StoredBits":
        """Return these entries alone."""
        return StoredBits(self.positions[keep], self.keys[keep], self.values[keep])


def bits_per_token(bits: int, group: int, head_dim: int) -> float:
    """Return the bits per element of a vector that is quantised in groups of its channels."""
    if bits == FULL_BITS:
        return bits
    return bits + SCALE_AND_ZERO * ceil(head_dim / group) / head_dim
