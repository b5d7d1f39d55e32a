"""TurboQuant: a random rotation and one optimal codebook for all coordinates (arXiv 2504.19874).

Equations (numbered here; Algorithms 1 and 2 of the paper):

1. Π: a random orthogonal matrix, Q of the QR decomposition of Gaussian numbers with R's signs put
   right
2. c: centroids that minimise E (y − c)² for a coordinate y of a random unit vector, whose density
   is proportional to (1 − y²)^((d−3)/2)
3. MSE version: index_j = nearest centroid of (Π x/‖x‖)_j
4. x̃ = ‖x‖·Πᵀ c[index]
5. inner-product version: r = x/‖x‖ − x̃/‖x‖ with one bit less; stored are sign(S r) and γ = ‖r‖,
   S a matrix of Gaussian numbers
6. x̃ = ‖x‖·(Πᵀ c[index] + √(π/2)/d·γ·Sᵀ sign(S r))

Π and S are drawn from a seed, once for all layers, heads, keys and values of a head dimension, so
that no cache stores them; norms are float16.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from kvlab.reference.checks import check_at_least
from kvlab.reference.codes import Code, Parts
from kvlab.reference.notation import Array, Float, Rows, UInt8
from kvlab.reference.precisions import Family, OnArrival
from kvlab.reference.quantization import pack, unpack

SEED = 0
ROTATION, PROJECTION = 0, 1
"""Streams of random numbers."""


@cache
def rotation(d: int, seed: int) -> Float[Array, "d d"]:
    """Draw Π, uniformly among the orthogonal matrices."""
    drawn = np.random.default_rng([ROTATION, seed, d]).standard_normal((d, d))
    q, r = np.linalg.qr(drawn)
    return q * np.sign(np.diagonal(r))  # [TURBOQUANT 1]


@cache
def projection(d: int, seed: int) -> Float[Array, "d d"]:
    """Draw S."""
    return np.random.default_rng([PROJECTION, seed, d]).standard_normal((d, d))


@cache
def codebook(bits: int, d: int) -> Float[Array, " centroids"]:
    """Return the 2^bits centroids, ascending, as float32 holds them.

    Lloyd's iteration on the positive half, over the angle θ of y = sin θ, whose density is
    proportional to cos^(d−2) θ.
    """
    check_at_least(2, d=d)
    if bits == 0:
        return np.zeros(1)
    nodes, weights = np.polynomial.legendre.leggauss(256)
    borders = np.arcsin(np.linspace(0, 1, 2 ** (bits - 1) + 1) * min(1, 4 / np.sqrt(d)))
    borders[-1] = np.pi / 2
    centroids, before = np.zeros(2 ** (bits - 1)), np.full(1, np.inf)
    while np.abs(centroids - before).max() > 1e-13:
        before = centroids
        half = np.diff(borders)[:, None] / 2
        angles = borders[:-1, None] + half * (nodes + 1)
        mass = (half * weights * np.cos(angles) ** (d - 2)).sum(axis=1)
        moment = -np.diff(np.cos(borders) ** (d - 1)) / (d - 1)
        centroids = moment / mass  # [TURBOQUANT 2]
        borders[1:-1] = np.arcsin((centroids[:-1] + centroids[1:]) / 2)
    return np.concatenate([-centroids[::-1], centroids]).astype(np.float32).astype(np.float64)


def borders_of(centroids: Float[Array, " centroids"]) -> Float[Array, " borders"]:
    """Return the borders between nearest centroids; a border belongs to the lower one."""
    return (centroids[:-1] + centroids[1:]) / 2


@dataclass(frozen=True)
class TurboQuantMSE(Code):
    """The version that minimises the squared error."""

    bits: int
    """Bits per coordinate."""
    seed: int

    def encode(self, x: Rows) -> Parts:
        unit, norm = normalized(x)
        return pack(self.nearest(unit), self.bits), norm

    def decode(self, parts: Parts, d: int) -> Rows:
        codes, norm = parts
        return norm.astype(np.float64) * self.read(unpack(codes, self.bits, d))

    def nearest(self, unit: Rows) -> UInt8[Array, "rows d"]:
        """Return the index of the centroid that is nearest to each rotated coordinate."""
        d = unit.shape[1]
        rotated = unit @ rotation(d, self.seed).T
        indices = np.searchsorted(borders_of(codebook(self.bits, d)), rotated)  # [TURBOQUANT 3]
        return indices.astype(np.uint8)

    def read(self, indices: UInt8[Array, "rows d"]) -> Rows:
        """Return the vectors, of length about 1, that indices stand for."""
        d = indices.shape[1]
        return codebook(self.bits, d)[indices] @ rotation(d, self.seed)  # [TURBOQUANT 4]


@dataclass(frozen=True)
class TurboQuantProd(Code):
    """The version whose inner products with any query are right on average."""

    bits: int
    """Bits per coordinate: one of them is the sign of the projected residual."""
    seed: int

    @property
    def first(self) -> TurboQuantMSE:
        """The code of which the residual is taken."""
        return TurboQuantMSE(self.bits - 1, self.seed)

    def encode(self, x: Rows) -> Parts:
        unit, norm = normalized(x)
        indices = self.first.nearest(unit)
        residual = unit - self.first.read(indices)
        gamma = np.linalg.norm(residual, axis=1, keepdims=True).astype(np.float16)
        signs = residual @ projection(x.shape[1], self.seed).T >= 0  # [TURBOQUANT 5]
        codes = indices | signs.astype(np.uint8) << (self.bits - 1)
        return pack(codes, self.bits), np.concatenate([norm, gamma], axis=1)

    def decode(self, parts: Parts, d: int) -> Rows:
        codes = unpack(parts[0], self.bits, d)
        norm, gamma = np.split(parts[1].astype(np.float64), 2, axis=1)
        signs = 2.0 * (codes >> (self.bits - 1)) - 1
        correction = np.sqrt(np.pi / 2) / d * gamma * (signs @ projection(d, self.seed))
        indices = codes & (2 ** (self.bits - 1) - 1)
        return norm * (self.first.read(indices) + correction)  # [TURBOQUANT 6]


def normalized(x: Rows) -> tuple[Rows, Float[Array, "rows 1"]]:
    """Return the vectors at length 1, zero where they are zero, and their lengths in float16."""
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    if not (norm <= np.finfo(np.float16).max).all():
        raise ValueError("vectors must be finite and no longer than 65504 for turboquant")
    return np.divide(x, norm, out=np.zeros_like(x), where=norm > 0), norm.astype(np.float16)


FAMILY = Family(
    source="Zandieh et al., TurboQuant: Online Vector Quantization, 2504.19874, Alg. 1 and 2",
    equations=tuple(f"TURBOQUANT {number}" for number in range(1, 7)),
    precisions={
        "turboquant": OnArrival(TurboQuantMSE(4, SEED), TurboQuantMSE(4, SEED)),
        "turboquant_3bit": OnArrival(TurboQuantMSE(3, SEED), TurboQuantMSE(3, SEED)),
        "turboquant_2bit": OnArrival(TurboQuantMSE(2, SEED), TurboQuantMSE(2, SEED)),
        "turboquant_1bit": OnArrival(TurboQuantMSE(1, SEED), TurboQuantMSE(1, SEED)),
        "turboquant_prod": OnArrival(TurboQuantProd(4, SEED), TurboQuantMSE(4, SEED)),
        "turboquant_prod_3bit": OnArrival(TurboQuantProd(3, SEED), TurboQuantMSE(3, SEED)),
        "turboquant_prod_2bit": OnArrival(TurboQuantProd(2, SEED), TurboQuantMSE(2, SEED)),
    },
)
