"""What several kernels do with a block: squeeze logits, and read vectors of any precision.

No run-time type checker must wrap these functions, nor the kernels that call them.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def squeezed(logits, softcap):
    """Return softcap · tanh(logits / softcap), from exponentials that cannot overflow."""
    small = tl.exp(-2.0 * tl.abs(logits) / softcap)
    bent = softcap * (1.0 - small) / (1.0 + small)
    return tl.where(logits < 0, -bent, bent)


@triton.jit
@no_type_check
def read_vectors(
    vectors, scales, zeros, head, line, inside, channel, head_stride, row_stride, scale_stride,
    D: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BY_CHANNEL: tl.constexpr,
):  # fmt: skip
    """Return some rows of a table in float32: numbers of 16 bits or more, or codes of BITS bits.

    Codes share a scale in groups of GROUP channels of a row, or BY_CHANNEL of GROUP rows.
    """
    base = head * head_stride + line[:, None].to(tl.int64) * row_stride
    if BITS == 16:
        read = tl.load(vectors + base + channel, mask=inside, other=0.0).to(tl.float32)
    elif BY_CHANNEL:
        PER: tl.constexpr = 8 // BITS
        block, token = line // GROUP, line % GROUP
        at = block[:, None].to(tl.int64) * D + channel
        where = vectors + head * head_stride + at * (GROUP // PER) + (token // PER)[:, None]
        byte = tl.load(where, mask=inside, other=0).to(tl.int32)
        code = (byte >> ((token % PER) * BITS)[:, None]) & (2**BITS - 1)
        step = tl.load(scales + head * scale_stride + at, mask=inside, other=0.0).to(tl.float32)
        zero = tl.load(zeros + head * scale_stride + at, mask=inside, other=0.0).to(tl.float32)
        read = code.to(tl.float32) * step + zero
    else:
        PER: tl.constexpr = 8 // BITS
        GROUPS: tl.constexpr = (D + GROUP - 1) // GROUP
        byte = tl.load(vectors + base + channel // PER, mask=inside, other=0).to(tl.int32)
        code = (byte >> ((channel % PER) * BITS)[None, :]) & (2**BITS - 1)
        at = head * scale_stride + line[:, None].to(tl.int64) * GROUPS + channel // GROUP
        step = tl.load(scales + at, mask=inside, other=0.0).to(tl.float32)
        zero = tl.load(zeros + at, mask=inside, other=0.0).to(tl.float32)
        read = code.to(tl.float32) * step + zero
    return read
