"""Codes of 8, 4 and 2 bits, read inside a kernel, as numbers that tensor cores multiply exactly."""

from kvlab.fast.kernels.common import kernel, tl, triton


@kernel
def unpacked(packed, BITS: tl.constexpr):
    """Return the codes of bytes ``[rows, bytes]``."""
    rows: tl.constexpr = packed.shape[0]
    columns: tl.constexpr = packed.shape[1] * (8 // BITS)
    mask: tl.constexpr = 2**BITS - 1
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
def two_codes(words, number, BITS: tl.constexpr, TYPE: tl.constexpr):
    """Return the codes ``number`` of both halves of a word, next to each other, as numbers.

    The codes become the last digits of 128 in bfloat16, or of 1024 in float16, without any
    conversion; `bias_of` says what stays added to them.
    """
    mask: tl.constexpr = (2**BITS - 1) * 0x00010001
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
def four_pairs(words, first, step, BITS: tl.constexpr, TYPE: tl.constexpr):
    """Return the codes of four places in both halves of a word, in ascending place."""
    even = tl.join(
        two_codes(words, first, BITS, TYPE), two_codes(words, first + 2 * step, BITS, TYPE)
    )
    odd = tl.join(
        two_codes(words, first + step, BITS, TYPE), two_codes(words, first + 3 * step, BITS, TYPE)
    )
    return tl.join(even, odd)


@kernel
def numbers_of(words, BITS: tl.constexpr, TYPE: tl.constexpr):
    """Return the codes of words ``[rows, words]``, with `bias_of` added to each."""
    rows: tl.constexpr = words.shape[0]
    columns: tl.constexpr = words.shape[1] * (32 // BITS)
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
def read_rows(
    vectors, line, there,
    D: tl.constexpr, BITS: tl.constexpr, BLOCK_D: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Return rows of a table ``[rows, BLOCK_D]`` as they are, or codes with `bias_of` added.

    Codes of 4 and 2 bits are read as words of 32 bits.
    """
    per: tl.constexpr = 1 if BITS >= 8 else 32 // BITS
    item = tl.arange(0, BLOCK_D // per)
    inside = there[:, None] & (item < D // per)[None, :]
    read = tl.load(vectors + line[:, None] * (D // per) + item, mask=inside, other=0)
    if BITS == 8:
        read = (read ^ 0x80).to(tl.int8, bitcast=True).to(TYPE)
    elif BITS < 8:
        read = numbers_of(read, BITS, TYPE)
    return read.to(TYPE)


@kernel
def read_scales(
    scales, zeros, line, there,
    D: tl.constexpr, OWN: tl.constexpr, GROUP: tl.constexpr, BLOCK_GROUPS: tl.constexpr,
):  # fmt: skip
    """Return scales and zero points ``[BLOCK_GROUPS, rows]``.

    A table's groups have OWN channels; GROUP channels, which divide them, share a row here.
    """
    group = tl.arange(0, BLOCK_GROUPS)
    inside = (group < D // GROUP)[:, None] & there[None, :]
    at = line[None, :] * (D // OWN) + (group * GROUP // OWN)[:, None]
    step = tl.load(scales + at, mask=inside, other=0.0).to(tl.float32)
    return step, tl.load(zeros + at, mask=inside, other=0.0).to(tl.float32)


@kernel
def read_channels(
    vectors, scales, zeros, head, rows, first,
    D: tl.constexpr, BITS: tl.constexpr, OWN: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return rows from ``first`` on, ``[BLOCK_D, BLOCK_N]``; OWN of a channel share a scale."""
    per: tl.constexpr = 8 // BITS
    spans: tl.constexpr = (BLOCK_N + OWN - 1) // OWN
    channel = tl.arange(0, BLOCK_D)
    real = (channel < D)[:, None]
    line = first + tl.arange(0, BLOCK_N // per) * per
    at = (head * (rows // OWN) + line // OWN)[None, :] * D + channel[:, None]
    at = at * (OWN // per) + (line % OWN // per)[None, :]
    codes = unpacked(tl.load(vectors + at, mask=real & (line < rows)[None, :], other=0), BITS)
    span = first // OWN + tl.arange(0, spans)
    at = (head * (rows // OWN) + span)[None, :] * D + channel[:, None]
    inside = real & (span < rows // OWN)[None, :]
    step = tl.load(scales + at, mask=inside, other=0.0).to(tl.float32)
    zero = tl.load(zeros + at, mask=inside, other=0.0).to(tl.float32)
    codes = tl.reshape(codes.to(tl.float32), [BLOCK_D, spans, BLOCK_N // spans])
    return tl.reshape(codes * step[:, :, None] + zero[:, :, None], [BLOCK_D, BLOCK_N])
