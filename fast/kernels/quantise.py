"""Quantising in groups: codes that are really packed, and what outliers say about the loss.

The bits are those of `kvlab.reference.quantization`. PyTorch computes codes in float64, as the
reference does: an entry is quantised once or twice in its life, and a code must not depend on the
precision in which it was computed. Triton does it in one pass, and numbers of 16 bits in float32,
where it proves that no rounding changed a code; a second launch takes what is left, in float64.

Bytes of `quantise`, for vectors of d channels of e bytes: read d·e, written d·bits/8 and 4 per
group. Outliers are sought in PyTorch: DesireKV asks for them once in many tokens.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.codes import Coded, Parts, constant
from kvlab.fast.kernels.common import (
    constexpr,
    kernel,
    kind_of_call,
    on_device_of,
    tl,
    triton,
    tuned,
)
from kvlab.fast.kernels.notation import Float, Shaped, Slots, Tensor, UInt8
from kvlab.reference.notation import Array
from kvlab.reference.quantization import WIDTHS, OutlierMean


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


FORMATS = torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex128
WORD_OF_BYTES = {each.itemsize: each for each in FORMATS}
"""Formats by their bytes: the numbers that a byte of codes stands for are copied as one."""


def unpack(
    packed: UInt8[Tensor, "*rows bytes"], bits: int, length: int, dtype: torch.dtype = torch.uint8
) -> Shaped[Tensor, "*rows {length}"]:
    """Invert `pack`; the codes become numbers of a format."""
    if bits == 8:
        return packed.to(dtype)
    if 8 % bits == 0:
        words = words_of_bytes(bits, packed.device, dtype)
        if words is None:
            return unpack(packed, bits, length).to(dtype)
        codes = words.index_select(0, packed.int().flatten()).view(dtype)
        codes = codes.view(*packed.shape[:-1], packed.shape[-1] * 8 // bits)
        return codes if codes.shape[-1] == length else codes[..., :length]
    planes = (packed[..., None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
    planes = planes.flatten(-2)[..., : length * bits].unflatten(-1, (length, bits))
    weights = 2 ** torch.arange(bits, dtype=torch.uint8, device=packed.device)
    return (planes * weights).sum(dim=-1, dtype=torch.uint8).to(dtype)


@cache
def words_of_bytes(
    bits: int, device: torch.device, dtype: torch.dtype
) -> Shaped[Tensor, " 256"] | None:
    """Return, for every byte, the numbers that it stands for as one word; None without such one."""
    word = WORD_OF_BYTES.get(8 // bits * dtype.itemsize)
    codes = constant(codes_of_bytes, (bits,), device, dtype)
    return None if word is None else codes.view(word).flatten()


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
        numbers = unpack(packed, self.bits, length, dtype)
        if length % self.group == 0:
            grouped = numbers.unflatten(-1, (-1, self.group))
            grouped.mul_(scale.to(dtype).unsqueeze(-1)).add_(zero.to(dtype).unsqueeze(-1))
            return numbers
        numbers *= per_element(scale.to(dtype), self.group, length)
        return numbers.add_(per_element(zero.to(dtype), self.group, length))


def take(x: Tensor, rows: Slots) -> Tensor:
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
    if missing := -length % group:
        x = torch.cat([x, x[..., -1:].expand(*x.shape[:-1], missing)], dim=-1)
    groups = x.unflatten(-1, (-1, group))
    low, high = torch.aminmax(groups, dim=-1)
    largest_code = 2**bits - 1
    exact = ((high - low) / largest_code).clamp(max=limit)
    scale, zero = to_float16(torch.stack([exact, low]))
    step = scale.double()[..., None]
    steps = torch.where(step > 0, (groups - zero.double()[..., None]) / step, 0.0)
    codes = steps.clamp(0, largest_code).round().to(torch.uint8).flatten(-2)[..., :length]
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


# --- in one pass ---------------------------------------------------------------------------------


def quantise(x: Float[Tensor, "*rows length"], bits: int, group: int) -> Coded:
    """Quantise and pack vectors along their last axis: see `quantize`.

    Triton takes widths and groups that fill bytes and lie within a power of two; others take
    PyTorch: 3 bits, and a last group that is shorter.
    """
    fills_bytes = bits in (2, 4, 8) and group * bits % 8 == 0
    whole = group & (group - 1) == 0 and x.shape[-1] % group == 0
    if uses_triton(x, doubles=True) and fills_bytes and whole:
        with on_device_of(x):
            return _quantise_in_triton(x, bits, group)
    return quantize(x, bits, group)


def outlier_scores(
    x: Float[Tensor, "*rows length"], group: int, over: OutlierMean = "outliers"
) -> Float[Tensor, "*rows groups"]:
    """Mean distance of each group's outliers to its mean, 0 without outliers (DesireKV Eq. 6).

    An outlier lies more than 1.5 interquartile ranges outside the quartiles. The mean is over the
    outliers, or over the whole group so that their number counts. Computed in float64.
    """
    return torch.stack([one_group(block, over) for block in x.double().split(group, -1)], dim=-1)


def one_group(block: Float[Tensor, "*rows g"], over: OutlierMean) -> Float[Tensor, "*rows"]:
    """Return the outlier score of one group of channels."""
    levels = torch.tensor([0.25, 0.75], dtype=block.dtype, device=block.device)
    first, third = torch.quantile(block, levels, dim=-1, keepdim=True)
    reach = 1.5 * (third - first)
    outlier = (block < first - reach) | (block > third + reach)
    distance = (block - block.mean(dim=-1, keepdim=True)).abs()
    total = (distance * outlier).sum(dim=-1)
    count = outlier.sum(dim=-1).clamp(min=1) if over == "outliers" else block.shape[-1]
    return total / count


# --- in Triton ------------------------------------------------------------------------------------


DOUBT = constexpr(-1.0)
"""In the place of a scale, which is never below 0: the codes of this group are not sure."""
NUMBERS_IN_FLOAT64 = 1024
"""Numbers that a program takes, of which each needs some registers."""


@kernel
def in_float64(x, BITS: constexpr):
    """Return codes, as float32, scales and zero points of groups ``[groups, GROUP]``.

    Codes are (x − zero) / scale to the nearest, halves to even.
    """
    LARGEST: constexpr = 2**BITS - 1
    x = x.to(tl.float64)
    poison = tl.sum(tl.where(x != x, x, 0.0), axis=1)
    x = tl.minimum(tl.maximum(x, -65504.0), 65504.0)
    low, high = tl.min(x, axis=1), tl.max(x, axis=1)
    scale = (tl.minimum((high - low) / LARGEST, 65504.0) + poison).to(tl.float16)
    zero = (low + poison).to(tl.float16)
    there = (scale > 0)[:, None]
    step = tl.where(there, scale.to(tl.float64)[:, None], 1.0)
    steps = tl.where(there, (x - zero.to(tl.float64)[:, None]) / step, 0.0)
    steps = tl.minimum(tl.maximum(steps, 0.0), LARGEST)
    return ((steps + 6755399441055744.0) - 6755399441055744.0).to(tl.float32), scale, zero


@kernel
def in_float32(x, BITS: constexpr, PER: constexpr):
    """Return what `in_float64` does, and of which groups that is sure, for numbers of 16 bits.

    Their differences are exact unless one is 2^12 times the other: they have 11 digits, float32 has
    24. What is ``left`` of x − zero beside ``near``, a multiple of ½, is exact, too, and moves the
    quotient off ``near`` unless it is 0: float32 numbers beside near · step, of 20 digits, are
    further away than what rounds to ``near``. So an error of x − zero, which needs an x far below
    zero, may matter where ``left`` is 0. Scales are right for the same reason: halfway between two
    numbers of float16, times the largest code, has 20 digits.
    """
    LARGEST: constexpr = 2**BITS - 1
    x = x.to(tl.float32)
    low, high = tl.min(x, axis=1), tl.max(x, axis=1)
    span = high - low
    scale = tl.minimum(tl.div_rn(span, LARGEST * 1.0), 65504.0).to(tl.float16)
    zero = tl.maximum(low, -65504.0).to(tl.float16)
    step, offset = scale.to(tl.float32), zero.to(tl.float32)
    inverse = tl.where(step > 0, 1.0 / tl.where(step > 0, step, 1.0), 0.0)
    shifted = x - offset[:, None]
    near = (shifted * inverse[:, None] + 6291456.0) - 6291456.0
    left = shifted - near * step[:, None]
    steps = tl.minimum(tl.maximum(near + left * inverse[:, None], 0.0), LARGEST)

    exact = (span + low == high) & (high - span == low) & (low >= -65504.0) & (high <= 65504.0)
    clear = tl.reshape(tl.abs(x) + tl.abs(left) * 1e30, [x.shape[0], x.shape[1] // PER, PER])
    doubt = tl.where(exact[:, None], tl.abs(offset)[:, None] / 4096.0 - tl.min(clear, axis=2), 1.0)
    total = tl.sum(x, axis=1)
    return steps, scale, zero, (tl.max(doubt, axis=1) <= 0) & (total == total)


@kernel
def read_groups(vectors, first, there, GROUP: constexpr, BLOCK: constexpr, WIDTH: constexpr):
    """Return some groups, which are held in stretches one above another: few threads share one."""
    TURNS: constexpr = max(1, GROUP // WIDTH)
    group = tl.arange(0, BLOCK)[:, None]
    turn, channel = tl.arange(0, TURNS)[:, None, None], tl.arange(0, GROUP // TURNS)
    at = vectors + first * GROUP + (turn * (GROUP // TURNS) + group * GROUP + channel)
    x = tl.load(at, mask=there[:, None], other=0.0)
    return tl.reshape(tl.permute(x, (1, 0, 2)), [BLOCK, GROUP])


@kernel
def write_groups(
    codes, scales, zeros, first, there, steps, scale, zero, BITS: constexpr, PER: constexpr
):
    """Pack the codes of some groups, PER in an element of ``codes``, and write them."""
    BLOCK: constexpr = steps.shape[0]
    WORDS: constexpr = steps.shape[1] // PER
    group = tl.arange(0, BLOCK)
    code = (steps + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
    code = tl.reshape(code, [BLOCK, WORDS, PER]) << (tl.arange(0, PER) * BITS)
    packed = tl.sum(code, axis=2).to(codes.dtype.element_ty)
    to = codes + first * WORDS + (group[:, None] * WORDS + tl.arange(0, WORDS))
    tl.store(to, packed, mask=there[:, None])
    tl.store(scales + first + group, scale, mask=there)
    tl.store(zeros + first + group, zero, mask=there)


@tuned(
    "BLOCK WIDTH",
    (
        (2, 3, 32, 16),
        (4, 3, 32, 32),
        (1, 3, 8, 32),
        (1, 3, 16, 32),
        (1, 3, 16, 16),
        (4, 3, 64, 32),
        (4, 3, 64, 16),
    ),
    key=["kind", "GROUP", "BITS"],
)
@kernel
def quantise_groups(
    vectors, codes, scales, zeros, groups, kind,
    GROUP: constexpr, BITS: constexpr, PER: constexpr, BLOCK: constexpr, WIDTH: constexpr,
):  # fmt: skip
    """Quantise groups of 16-bit numbers in float32; those of doubt get the scale `DOUBT`.

    Grid: (blocks of groups).
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK
    there = first + tl.arange(0, BLOCK) < groups
    x = read_groups(vectors, first, there, GROUP, BLOCK, WIDTH)
    steps, scale, zero, sure = in_float32(x, BITS, PER)
    scale = tl.where(sure, scale, tl.full([BLOCK], DOUBT, tl.float16))
    write_groups(codes, scales, zeros, first, there, steps, scale, zero, BITS, PER)


@kernel
def quantise_doubtful(
    vectors, codes, scales, zeros, groups,
    GROUP: constexpr, BITS: constexpr, PER: constexpr, BLOCK: constexpr, WIDTH: constexpr,
    ALL: constexpr,
):  # fmt: skip
    """Quantise the groups whose scale is `DOUBT`, or ALL, bit for bit as the reference: in float64.

    Grid: (blocks of groups).
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK
    group = tl.arange(0, BLOCK)
    there = first + group < groups
    if not ALL:
        there &= tl.load(scales + first + group, mask=there, other=0.0) == DOUBT
    if tl.max(there.to(tl.int32), axis=0) > 0:
        x = read_groups(vectors, first, there, GROUP, BLOCK, WIDTH)
        steps, scale, zero = in_float64(x, BITS)
        write_groups(codes, scales, zeros, first, there, steps, scale, zero, BITS, PER)


WORDS = {8: torch.uint8, 16: torch.int16, 32: torch.int32}
"""How bytes of codes are written, by the bits that are written together."""


def _quantise_in_triton(x: Tensor, bits: int, group: int) -> Coded:
    *leading, length = x.shape
    groups, together = x.numel() // group, min(8, group, 32 // bits)
    codes = x.new_empty((*leading, length * bits // 8), dtype=torch.uint8)
    scales, zeros = (x.new_empty((*leading, length // group), dtype=torch.float16) for _ in "xx")
    given = x.contiguous(), codes.view(WORDS[together * bits]), scales, zeros, groups
    sizes: dict[str, Any] = {"GROUP": group, "BITS": bits, "PER": together}
    if groups and x.itemsize == 2:
        quantise_groups[lambda taken: (triton.cdiv(groups, taken["BLOCK"]),)](
            *given, kind_of_call(1, groups), **sizes
        )
    if groups:
        block = max(1, NUMBERS_IN_FLOAT64 // group)
        quantise_doubtful[(triton.cdiv(groups, block),)](
            *given, **sizes, BLOCK=block, WIDTH=32, ALL=x.itemsize != 2
        )
    return Coded(Groups(bits, group), (codes, scales, zeros), length)
