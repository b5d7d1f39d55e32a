"""TurboQuant: a random rotation and one optimal codebook for all coordinates (2504.19874).

Rotation, projection and codebook are the reference's.
"""

from math import pi, sqrt

import torch

from kvlab.fast.engine.storage import Code
from kvlab.fast.kernels.codes import Parts, constant
from kvlab.fast.kernels.notation import Float, RowVectors, Tensor, UInt8
from kvlab.fast.kernels.quantise import pack, to_float16, unpack
from kvlab.reference.notation import Array
from kvlab.reference.precisions import turboquant as reference


class TurboQuantMSE(Code[reference.TurboQuantMSE]):
    """The version that minimises the squared error."""

    def encode(self, x: RowVectors) -> Parts:
        unit, norm = normalized(x)
        return pack(self.nearest(unit), self.bits), norm

    def decode(self, parts: Parts, d: int, dtype: torch.dtype) -> RowVectors:
        codes, norm = parts
        return norm.to(dtype) * self.read(unpack(codes, self.bits, d), dtype)

    def nearest(self, unit: RowVectors) -> UInt8[Tensor, "*rows d"]:
        """Return the index of the centroid that is nearest to each rotated coordinate."""
        d, device = unit.shape[-1], unit.device
        rotated = unit @ constant(reference.rotation, (d, self.spec.seed), device, unit.dtype).T
        limits = constant(borders, (self.bits, d), device, unit.dtype)
        return torch.bucketize(rotated, limits).to(torch.uint8)

    def read(self, indices: UInt8[Tensor, "*rows d"], dtype: torch.dtype) -> RowVectors:
        """Return the vectors, of length about 1, that indices stand for."""
        d, device = indices.shape[-1], indices.device
        centroids = constant(reference.codebook, (self.bits, d), device, dtype)
        return centroids[indices.long()] @ constant(
            reference.rotation, (d, self.spec.seed), device, dtype
        )


class TurboQuantProd(Code[reference.TurboQuantProd]):
    """The version whose inner products with any query are right on average."""

    @property
    def first(self) -> TurboQuantMSE:
        """The code of which the residual is taken."""
        return TurboQuantMSE(self.spec.first)

    def encode(self, x: RowVectors) -> Parts:
        unit, norm = normalized(x)
        indices = self.first.nearest(unit)
        residual = unit - self.first.read(indices, unit.dtype)
        gamma = to_float16(torch.linalg.vector_norm(residual, dim=-1, keepdim=True))
        signs = residual @ self.projection(unit).T >= 0
        codes = indices | signs.to(torch.uint8) << (self.bits - 1)
        return pack(codes, self.bits), torch.cat([norm, gamma], dim=-1)

    def decode(self, parts: Parts, d: int, dtype: torch.dtype) -> RowVectors:
        codes = unpack(parts[0], self.bits, d)
        norm, gamma = parts[1].to(dtype).split(1, dim=-1)
        signs = 2 * (codes >> (self.bits - 1)).to(dtype) - 1
        correction = sqrt(pi / 2) / d * gamma * (signs @ self.projection(signs))
        indices = codes & (2 ** (self.bits - 1) - 1)
        return norm * (self.first.read(indices, dtype) + correction)

    def projection(self, like: RowVectors) -> Float[Tensor, "d d"]:
        """Return S in the format of some vectors."""
        d = like.shape[-1]
        return constant(reference.projection, (d, self.spec.seed), like.device, like.dtype)


def borders(width: int, d: int) -> Array:
    """Return the borders between nearest centroids."""
    return reference.borders_of(reference.codebook(width, d))


def normalized(x: RowVectors) -> tuple[RowVectors, Float[Tensor, "*rows 1"]]:
    """Return the vectors at length 1, zero where they are zero, and their lengths in float16.

    A length beyond float16's range is clipped to it: a check would have to wait for the device.
    """
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    unit = torch.where(norm > 0, x / norm, 0.0)
    return unit, to_float16(norm.clamp(max=torch.finfo(torch.float16).max))
