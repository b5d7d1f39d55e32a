"""Codes of 8, 4 and 2 bits, read inside a kernel, as numbers that tensor cores multiply exactly.

| codes | are read as | and become numbers by |
|---|---|---|
| 8 bits, along the channels of a token | bytes | turning the highest bit: code − 128 |
| 4 and 2 bits, along the channels of a token | words of 32 bits | `numbers_of` |
| all, along the tokens of a channel | bytes | `unpacked`, as whole numbers |

`read_rows` does the first two, `read_channels` the third. A word holds eight codes of 4 bits, the
first in its lowest bits. Shifted by 4·i and masked with 0x000F000F it holds codes i and i + 4, each
at the end of 16 bits; and with 0x4300 before it, a code is the number 128 + code in bfloat16, with
0x6400 it is 1024 + code in float16. So two codes cost a shift, a mask and an or, and no conversion.

What stays added to a code is its *bias*. Sums are freed of it as a whole: Σ q·(code + bias) is
Σ q·code + bias·Σ q.
"""

from kvlab.fast.kernels.common import constexpr, kernel, tl, triton


@kernel
def unpacked(packed, BITS: constexpr):
    """Return the codes of bytes ``[rows, bytes]``."""
    rows: constexpr = packed.shape[0]
    columns: constexpr = packed.shape[1] * (8 // BITS)
    mask: constexpr = 2**BITS - 1
    if BITS == 8:
        codes = packed
    elif BITS == 4:
        codes = tl.join(packed & mask, packed >> 4)
    else:
        even = tl.join(packed & mask, (packed >> 4) & mask)
        odd = tl.join((packed >> 2) & mask, packed >> 6)
        codes = tl.join(even, odd)
    return tl.reshape(codes, [rows, columns])


@kernel
def two_codes(words, number, BITS: constexpr, TYPE: constexpr):
    """Return the codes ``number`` of both halves of a word, next to each other, as numbers.

    The codes become the last digits of 128 in bfloat16, or of 1024 in float16, without any
    conversion; `bias_of` says what stays added to them.
    """
    mask: constexpr = (2**BITS - 1) * 0x00010001
    pair = (words >> (BITS * number)) & mask
    if TYPE.is_bf16():
        pair = pair | 0x43004300
    elif TYPE.is_fp16():
        pair = pair | 0x64006400
    low, high = pair.to(tl.uint16), (pair >> 16).to(tl.uint16)
    if TYPE.is_fp32():
        numbers = tl.join(low.to(tl.float32), high.to(tl.float32))
    else:
        numbers = tl.join(low.to(TYPE, bitcast=True), high.to(TYPE, bitcast=True))
        if TYPE.is_fp16():  # sums of numbers as large as 1024 would lose three digits
            numbers = numbers - tl.full([], 1024.0, tl.float16)
    return numbers


@kernel
def four_pairs(words, first, step, BITS: constexpr, TYPE: constexpr):
    """Return the codes of four places in both halves of a word, in ascending place.

    `tl.join` puts two arrays along a new last axis, so the one joined last alternates: the first
    and third place make up the even numbers, the others the odd ones.
    """
    even = tl.join(
        two_codes(words, first, BITS, TYPE), two_codes(words, first + 2 * step, BITS, TYPE)
    )
    odd = tl.join(
        two_codes(words, first + step, BITS, TYPE), two_codes(words, first + 3 * step, BITS, TYPE)
    )
    return tl.join(even, odd)


@kernel
def numbers_of(words, BITS: constexpr, TYPE: constexpr):
    """Return the codes of words ``[rows, words]``, with `bias_of` added to each."""
    rows: constexpr = words.shape[0]
    columns: constexpr = words.shape[1] * (32 // BITS)
    if BITS == 4:
        numbers = four_pairs(words, 0, 1, BITS, TYPE)
    else:
        numbers = tl.join(four_pairs(words, 0, 2, BITS, TYPE), four_pairs(words, 1, 2, BITS, TYPE))
    return tl.reshape(numbers, [rows, columns])


@triton.constexpr_function
def bias_of(bits, number_type):
    """Return what `read_rows` adds to codes of some bits."""
    if bits == 8:
        return -128.0
    return 128.0 if number_type == tl.bfloat16 else 0.0


@kernel
def in_order(rows, FOR_SUMS: constexpr):
    """Return ``[rows, BLOCK_D]``, or its transpose unless FOR_SUMS, in another order of channels.

    In this order a thread of a program of two warps multiplies the codes of the words that it read,
    so that they need not pass through shared memory: FOR_SUMS those whose products are added over
    channels, else those whose products are added over rows.
    """
    count: constexpr = rows.shape[0]
    columns: constexpr = rows.shape[1]
    if columns < 64:
        return rows if FOR_SUMS else tl.trans(rows)
    elif FOR_SUMS:
        parts = tl.reshape(rows, [count, 4, columns // 32, 2, 2, 2])
        return tl.reshape(tl.permute(parts, (0, 4, 2, 1, 5, 3)), [count, columns])
    else:
        parts = tl.reshape(rows, [count, columns // 64, 8, 2, 4])
        return tl.reshape(tl.permute(parts, (4, 1, 3, 2, 0)), [columns, count])


@kernel
def channels_in_order(BLOCK_D: constexpr, FOR_SUMS: constexpr, ORDERED: constexpr):
    """Return the channels of what `in_order` returns, or of rows as they are."""
    channel = tl.arange(0, BLOCK_D)
    if ORDERED:
        channel = tl.reshape(in_order(channel[None, :], FOR_SUMS), [BLOCK_D])
    return channel


@kernel
def read_rows(
    vectors, line, there,
    D: constexpr, BITS: constexpr, BLOCK_D: constexpr, TYPE: constexpr, UPRIGHT: constexpr = False,
):  # fmt: skip
    """Return rows of a table ``[rows, BLOCK_D]`` as they are, or codes with `bias_of` added.

    Codes of 4 and 2 bits are read as words of 32 bits. UPRIGHT turns rows into columns; what is
    read like that need not be turned, because the compiler would not read it ahead.
    """
    per: constexpr = 1 if BITS >= 8 else 32 // BITS
    item = tl.arange(0, BLOCK_D // per)
    if UPRIGHT and BITS >= 8:
        inside = there[None, :] & (item < D)[:, None]
        read = tl.load(vectors + line[None, :] * D + item[:, None], mask=inside, other=0)
    else:
        inside = there[:, None] & (item < D // per)[None, :]
        read = tl.load(vectors + line[:, None] * (D // per) + item, mask=inside, other=0)
    if BITS == 8:
        read = (read ^ 0x80).to(tl.int8, bitcast=True)
    elif BITS < 8:
        read = numbers_of(read, BITS, TYPE)
        if UPRIGHT:
            read = tl.trans(read)
    return read.to(TYPE)


@kernel
def read_scales(
    scales, zeros, line, there,
    D: constexpr, OWN: constexpr, GROUP: constexpr, BLOCK_GROUPS: constexpr,
):  # fmt: skip
    """Return scales and zero points ``[BLOCK_GROUPS, rows]``.

    A table's groups have OWN channels; GROUP channels, which divide them, share a row here. Where
    numbers lie in pairs, pairs are read: what has less than 32 bits cannot be read ahead.
    """
    number = tl.arange(0, BLOCK_GROUPS) * GROUP // OWN
    inside = (number < D // OWN)[:, None] & there[None, :]
    if scales.dtype.element_ty == tl.int32:
        at = line[None, :] * (D // OWN // 2) + (number // 2)[:, None]
        up = (number % 2 * 16)[:, None]
        step = tl.load(scales + at, mask=inside, other=0) >> up
        zero = tl.load(zeros + at, mask=inside, other=0) >> up
        step = step.to(tl.int16).to(tl.float16, bitcast=True)
        zero = zero.to(tl.int16).to(tl.float16, bitcast=True)
    else:
        at = line[None, :] * (D // OWN) + number[:, None]
        step = tl.load(scales + at, mask=inside, other=0.0)
        zero = tl.load(zeros + at, mask=inside, other=0.0)
    return step.to(tl.float32), zero.to(tl.float32)


@kernel
def read_channels(
    vectors, scales, zeros, before, rows, first,
    D: constexpr, BITS: constexpr, OWN: constexpr, BLOCK_D: constexpr, BLOCK_N: constexpr,
):  # fmt: skip
    """Return rows from ``first`` on, ``[BLOCK_D, BLOCK_N]``; OWN of a channel share a scale.

    The table has ``before`` rows of other heads in front of this one's.
    """
    per: constexpr = 8 // BITS
    spans: constexpr = max(1, BLOCK_N // OWN)
    width: constexpr = BLOCK_N // spans
    channel, span = tl.arange(0, BLOCK_D)[:, None], first // OWN + tl.arange(0, spans)
    inside = (channel < D) & (span < rows // OWN)[None, :]
    at = (before // OWN + span)[None, :] * D + channel
    byte = tl.arange(0, width // per)
    if OWN > BLOCK_N:
        byte += first % OWN // per
    codes = tl.load(
        vectors + at[:, :, None] * (OWN // per) + byte, mask=inside[:, :, None], other=0
    )
    codes = unpacked(tl.reshape(codes, [BLOCK_D, BLOCK_N // per]), BITS).to(tl.float32)
    step = tl.load(scales + at, mask=inside, other=0.0).to(tl.float32)
    zero = tl.load(zeros + at, mask=inside, other=0.0).to(tl.float32)
    codes = tl.reshape(codes, [BLOCK_D, spans, width])
    return tl.reshape(codes * step[:, :, None] + zero[:, :, None], [BLOCK_D, BLOCK_N])
