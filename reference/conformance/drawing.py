"""Numbers for test vectors: the same bits on every machine.

They come from the raw output of a bit generator, whose stream NumPy guarantees, by integer
arithmetic alone; distributions of NumPy are promised for one version only.
"""

import zlib

import numpy as np
from jaxtyping import Bool, Float, Int

from kvlab.reference.notation import Array


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
