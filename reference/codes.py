"""Codes: how a vector is stored in few bits per element, independently of other vectors."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped

from kvlab.reference.notation import Array

Parts = tuple[Shaped[Array, "rows _"], ...]
"""What is stored of some vectors: packed codes first, then scales or norms."""

Scale = Float[Array, "#G 1 1"]
"""Divisor of vectors before they are coded, in float32; one number, or one per head."""


@dataclass(frozen=True)
class Code(ABC):
    """A way to store a vector in few bits per element; codes of equal parameters are equal."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """Bits per element, without scales and norms."""

    def bits_with_scales(self, d: int) -> float:
        """Return the bits per element of a vector of ``d`` channels, with its scales and norms."""
        return 8 * sum(part.nbytes for part in self.encode(np.zeros((1, d)))) / d

    def scale(self, vectors: Float[Array, "G n d"]) -> Scale | None:
        """Return the scale that the first block of a layer fixes; None if the code has none."""
        return None

    @abstractmethod
    def encode(self, x: Float[Array, "rows d"]) -> Parts:
        """Return what is stored of vectors; the caller has divided them by the scale.

        Raises:
            ValueError: if ``x`` cannot be stored.
        """

    @abstractmethod
    def decode(self, parts: Parts, d: int) -> Float[Array, "rows d"]:
        """Return the vectors that attention reads, still divided by the scale."""


def scale_to(largest: float, vectors: Float[Array, "G n d"], per_head: bool = False) -> Scale:
    """Return the scale that makes the largest element of the vectors ``largest``.

    The scale is 1 if all elements are zero.

    Raises:
        ValueError: if an element is beyond the range of float32.
    """
    size = np.abs(vectors).max(axis=(1, 2) if per_head else (0, 1, 2), keepdims=True)
    if not (size <= np.finfo(np.float32).max).all():
        raise ValueError("vectors must be finite and within the range of float32 to be scaled")
    scale = (size / largest).astype(np.float32)
    return np.where(scale > 0, scale, np.float32(1))
