"""Asymmetric uniform quantisation with packed codes, the bits of `kvlab.reference.quantization`.

Codes are computed in float64, as the reference does: an entry is quantised once or twice in its
life, and a code must not depend on the precision in which it was computed.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from kvlab.fast.engine.codes import Coded, Parts, constant
from kvlab.reference.notation import Array
from kvlab.reference.quantization import WIDTHS


def pack(codes: UInt8[Tensor, "*rows length"], bits: int) -> UInt8[Tensor, "*rows bytes"]:
    """Write the low ``bits`` bits of each code one after another into bytes, lowest bit first."""
    if 8 % bits == 0 and codes.shape[-1] * bits % 8 == 0:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
        several = (codes & (2**bits - 1)).unflatten(-1, (-1, 8 // bits)) << shifts
        return several.sum(dim=-1, dtype=torch.uint8)
    planes = (codes[..., None] >> torch.arange(bits, device=codes.device)) & 1
    planes = planes.flatten(-2)
    missing = -planes.shape[-1] % 8
    planes = torch.nn.functional.pad(planes, (0, missing)).unflatten(-1, (-1, 8))
    weights = 2 ** torch.arange(8, device=codes.device)
    return (planes * weights).sum(dim=-1).to(torch.uint8)


def unpack(
    packed: UInt8[Tensor, "*rows bytes"], bits: int, length: int
) -> UInt8[Tensor, "*rows {length}"]:
    """Invert `pack`."""
    if bits == 8:
        return packed
    if 8 % bits == 0:
        table = constant(codes_of_bytes, (bits,), packed.device, torch.uint8)
        words = table.view({4: torch.int16, 2: torch.int32, 1: torch.int64}[bits]).flatten()
        codes = words.index_select(0, packed.flatten().int()).view(torch.uint8)
        return codes.view(*packed.shape[:-1], packed.shape[-1] * 8 // bits)[..., :length]
    planes = (packed[..., None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
    planes = planes.flatten(-2)[..., : length * bits].unflatten(-1, (length, bits))
    weights = 2 ** torch.arange(bits, dtype=torch.uint8, device=packed.device)
    return (planes * weights).sum(dim=-1, dtype=torch.uint8)


def codes_of_bytes(bits: int) -> Array:
    """Return the codes that every byte holds, for widths that fill bytes: a row per byte."""
    byte = np.arange(256, dtype=np.uint8)[:, None]
    return (byte >> np.arange(0, 8, bits, dtype=np.uint8)) & (2**bits - 1)


@dataclass(frozen=True)
class Groups:
    """Asymmetric uniform codes, in consecutive groups of ``group`` elements."""

    bits: int
    group: int

    def decode(
        self, parts: Parts, length: int, dtype: torch.dtype
    ) -> Float[Tensor, "*rows {length}"]:
        """Return x̂ = Δ·code + z; ``parts`` are packed codes, scales Δ and zero points z."""
        packed, scale, zero = parts
        numbers = unpack(packed, self.bits, length).to(dtype)
        if length % self.group == 0:
            grouped = numbers.unflatten(-1, (-1, self.group))
            grouped.mul_(scale.to(dtype)[..., None]).add_(zero.to(dtype)[..., None])
            return numbers
        numbers *= per_element(scale.to(dtype), self.group, length)
        return numbers.add_(per_element(zero.to(dtype), self.group, length))


def take(x: Tensor, rows: Int[Tensor, "N G kept"]) -> Tensor:
    """Return the rows of ``[N, G, n, ...]`` with these indices along the third axis."""
    N, G, n = x.shape[:3]
    heads = torch.arange(N * G, device=x.device).view(N, G, 1) * n
    flat = x.reshape(N * G * n, -1).index_select(0, (heads + rows).flatten())
    return flat.view(N, G, rows.shape[2], *x.shape[3:])


def quantize(x: Float[Tensor, "*rows length"], bits: int, group: int) -> Coded:
    """Quantise each vector of ``x`` along its last axis.

    Source: KIVI (arXiv 2402.02750). Halves round to even; a constant group gets codes 0. A value
    beyond float16's range is clipped to it: a check would have to wait for the device.
    """
    if bits not in WIDTHS:
        raise ValueError(f"bits = {bits} must be one of {WIDTHS}")
    if group < 1:
        raise ValueError(f"group = {group} must be at least 1")
    length = x.shape[-1]
    limit = torch.finfo(torch.float16).max
    x = x.double().clamp(-limit, limit)
    missing = -length % group
    padded = torch.cat([x, x[..., -1:].expand(*x.shape[:-1], missing)], dim=-1)
    low, high = torch.aminmax(padded.unflatten(-1, (-1, group)), dim=-1)
    largest_code = 2**bits - 1
    scale = to_float16(((high - low) / largest_code).clamp(max=limit))
    zero = to_float16(low)
    step = per_element(scale.double(), group, length)
    offset = x - per_element(zero.double(), group, length)
    steps = torch.where(step > 0, offset / step, 0.0)
    codes = steps.clamp(0, largest_code).round().to(torch.uint8)
    return Coded(Groups(bits, group), (pack(codes, bits), scale, zero), length)


def to_float16(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Round float64 to the nearest float16, once.

    PyTorch goes through float32, which rounds twice. So float32 is rounded to odd: towards zero,
    with the last bit set where something was cut off.
    """
    single = x.float()
    back = single.double()
    bits = single.view(torch.int32) - (back.abs() > x.abs()).int()
    return (bits | (back != x).int()).view(torch.float32).half()


def per_element(
    per_group: Float[Tensor, "*rows groups"], group: int, length: int
) -> Float[Tensor, "*rows {length}"]:
    """Repeat what each group of elements shares for its elements; the last group may be shorter."""
    return per_group.repeat_interleave(group, dim=-1)[..., :length]
