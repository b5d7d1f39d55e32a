"""Attention of one token to tables of 16, 8, 4 and 2 bits, in one pass over their codes.

Codes are small whole numbers, so that a tensor core multiplies them without rounding: what belongs
to a scale is added up first, and multiplied by the scale afterwards, in float32. For that queries
and probabilities are spread over rows, one per group of channels. Vectors are the first factor and
queries the second, because tensor cores take 16 rows or more, but 8 columns.
"""

from typing import no_type_check

import triton
import triton.language as tl

from kvlab.fast.kernels.coded_table import TABLE_SHIFT
from kvlab.fast.kernels.triton.blocks import squeezed
from kvlab.fast.kernels.triton.tuning import blocks, tuned

SHIFT = tl.constexpr(TABLE_SHIFT)
ROW = tl.constexpr(2**TABLE_SHIFT - 1)
"""Bits of a partner that are the row."""


@triton.jit
@no_type_check
def number_of(odd):
    """Invert `tables_launch.odd`."""
    return (odd - 3) >> 1


@triton.jit
@no_type_check
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


@triton.jit
@no_type_check
def two_codes(words, number, BITS: tl.constexpr, TYPE: tl.constexpr):
    """Return the codes ``number`` of both halves of a word, next to each other, as numbers.

    They become the last digits of 128 in bfloat16, or of 1024 in float16, without any conversion;
    `bias_of` says what is left of that.
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


@triton.jit
@no_type_check
def four_pairs(words, first, step, BITS: tl.constexpr, TYPE: tl.constexpr):
    """Return the codes of four places in both halves of a word, in ascending place."""
    even = tl.join(
        two_codes(words, first, BITS, TYPE), two_codes(words, first + 2 * step, BITS, TYPE)
    )
    odd = tl.join(
        two_codes(words, first + step, BITS, TYPE), two_codes(words, first + 3 * step, BITS, TYPE)
    )
    return tl.join(even, odd)


@triton.jit
@no_type_check
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


@triton.jit
@no_type_check
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


@triton.jit
@no_type_check
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


@triton.jit
@no_type_check
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


@triton.jit
@no_type_check
def products_with_keys(
    q, q_sums, keys, scales, zeros, head, rows, first,
    D: tl.constexpr, BITS: tl.constexpr, OWN: tl.constexpr, BY_CHANNEL: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_RHO: tl.constexpr, BLOCK_GROUPS: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Dot products ``[BLOCK_RHO, BLOCK_N]`` of queries, spread over groups, with some rows."""
    shape: tl.constexpr = [BLOCK_RHO, BLOCK_GROUPS, BLOCK_N]
    line = first + tl.arange(0, BLOCK_N)
    there = line < rows
    place = head * rows + line
    if BY_CHANNEL:
        k = read_channels(keys, scales, zeros, head, rows, first, D, BITS, OWN, BLOCK_D, BLOCK_N)
        upper = k.to(q.dtype)
        found = tl.dot(tl.trans(upper), tl.trans(q), input_precision="ieee")
        if q.dtype != tl.float32:  # what rounding cut off
            rest = (k - upper.to(tl.float32)).to(q.dtype)
            found += tl.dot(tl.trans(rest), tl.trans(q))
        found = tl.reshape(tl.trans(found), shape)
    else:
        k = read_rows(keys, place, there, D, BITS, BLOCK_D, q.dtype)
        found = tl.dot(k, tl.trans(q), input_precision="ieee")
        found = tl.reshape(tl.trans(found), shape)
        if BITS < 16:
            step, zero = read_scales(scales, zeros, place, there, D, OWN, GROUP, BLOCK_GROUPS)
            zero -= bias_of(BITS, q.dtype) * step
            found = found * step[None, :, :] + q_sums[:, :, None] * zero[None, :, :]
    return tl.sum(found, axis=1)


@triton.jit
@no_type_check
def in_reach(numbers, TYPE: tl.constexpr):
    """Return numbers in a format, times a power of two, and by what to multiply to undo that.

    Float16 ends at 6e-8, far above what an attention sink leaves to others: the largest number
    ``[rows, groups]`` of the last axis is moved to its upper end, between 2^14 and 2^15.
    """
    if TYPE.is_fp16():
        largest = tl.max(numbers, axis=2).to(tl.int32, bitcast=True)
        exponent = tl.maximum(largest >> 23, 15)
        up = ((268 - exponent) << 23).to(tl.float32, bitcast=True)
        down = ((exponent - 14) << 23).to(tl.float32, bitcast=True)
        numbers = numbers * up[:, :, None]
    else:
        down = tl.full([numbers.shape[0], numbers.shape[1]], 1.0, tl.float32)
    return numbers.to(TYPE), down


@triton.jit
@no_type_check
def with_values(
    output, offset, weights, mine, place, values, scales, zeros,
    D: tl.constexpr, BITS: tl.constexpr, OWN: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_RHO: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Add the weighted codes of one table to the output, and what zero points add to ``offset``."""
    shape: tl.constexpr = [BLOCK_RHO, BLOCK_GROUPS, BLOCK_N]
    spread = tl.where(mine[None, :], weights, 0.0)[:, None, :]
    if BITS < 16:
        step, zero = read_scales(scales, zeros, place, mine, D, OWN, GROUP, BLOCK_GROUPS)
        offset += tl.sum(spread * zero[None, :, :], axis=2)
        spread, down = in_reach(spread * step[None, :, :], TYPE)
        offset -= bias_of(BITS, TYPE) * down * tl.sum(spread.to(tl.float32), axis=2)
    else:
        spread, down = in_reach(tl.broadcast_to(spread, shape), TYPE)
    v = read_rows(values, place, mine, D, BITS, BLOCK_D, TYPE)
    p = tl.reshape(spread, [BLOCK_RHO * BLOCK_GROUPS, BLOCK_N])
    if TYPE.is_fp16():
        down = tl.reshape(down, [BLOCK_RHO * BLOCK_GROUPS])[None, :]
        output += down * tl.dot(tl.trans(v), tl.trans(p), input_precision="ieee")
    else:
        output = tl.dot(tl.trans(v), tl.trans(p), output, input_precision="ieee")
    return output, offset


@triton.jit
@no_type_check
def attend_to_rows(
    q, q_sums, keys, key_scales, key_zeros, slots, partners,
    values, value_scales, value_zeros, raw, largest, total, part_output,
    head, place, rows, first_turn, last_turn, n, scale, softcap, value_rows,
    RHO: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr, OWN: tl.constexpr,
    BY_CHANNEL: tl.constexpr, VALUES: tl.constexpr, VALUE_BITS: tl.constexpr,
    VALUE_OWN: tl.constexpr, GROUP: tl.constexpr, BLOCK_RHO: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    SOFTCAP: tl.constexpr, SCORES: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Attend to some rows of one table of keys, and to their entries' values wherever they are.

    Values of the first table are expected in every block; the others are looked for.
    """
    row, column = tl.arange(0, BLOCK_RHO), tl.arange(0, BLOCK_D)
    group = tl.arange(0, BLOCK_GROUPS)
    best = tl.full([BLOCK_RHO], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_RHO], tl.float32)
    output = tl.zeros([BLOCK_D, BLOCK_RHO * BLOCK_GROUPS], tl.float32)
    offset = tl.zeros([BLOCK_RHO, BLOCK_GROUPS], tl.float32)
    for turn in range(first_turn, last_turn):
        line = turn * BLOCK_N + tl.arange(0, BLOCK_N)
        partner = tl.load(partners + head * rows + line, mask=line < rows, other=-1)
        held = partner >= 0
        logits = scale * products_with_keys(
            q, q_sums, keys, key_scales, key_zeros, head, rows, turn * BLOCK_N,
            D, BITS, OWN, BY_CHANNEL, GROUP, BLOCK_RHO, BLOCK_GROUPS, BLOCK_D, BLOCK_N,
        )  # fmt: skip
        if SOFTCAP:
            logits = squeezed(logits, softcap)
        logits = tl.where(held[None, :], logits, float("-inf"))
        if SCORES:
            slot = tl.load(slots + head * rows + line, mask=held, other=0)
            to = raw + (head * RHO + row[:, None]) * n + slot[None, :]
            tl.store(to, logits, mask=(row < RHO)[:, None] & held[None, :])
        now = tl.maximum(best, tl.max(logits, axis=1))
        anchor = tl.where(now == float("-inf"), 0.0, now)
        weights = tl.exp(logits - anchor[:, None])
        shrink = tl.exp(best - anchor)
        mass = mass * shrink + tl.sum(weights, axis=1)
        spread = tl.broadcast_to(shrink[:, None], [BLOCK_RHO, BLOCK_GROUPS])
        output = output * tl.reshape(spread, [BLOCK_RHO * BLOCK_GROUPS])[None, :]
        offset = offset * spread
        best = now
        for number in tl.static_range(len(VALUES)):
            mine = (partner >> SHIFT) == VALUES[number]
            if number == 0 or tl.max(mine.to(tl.int32), axis=0) > 0:
                at = partner & ROW
                output, offset = with_values(
                    output, offset, weights, mine, head * number_of(value_rows[number]) + at,
                    values[number], value_scales[number], value_zeros[number],
                    D, VALUE_BITS[number], VALUE_OWN[number], GROUP,
                    BLOCK_RHO, BLOCK_GROUPS, BLOCK_D, BLOCK_N, TYPE,
                )  # fmt: skip
    whole = tl.reshape(tl.trans(output), [BLOCK_RHO, BLOCK_GROUPS, BLOCK_D]) + offset[:, :, None]
    own = (column // GROUP)[None, None, :] == group[None, :, None]
    joined = tl.sum(tl.where(own, whole, 0.0), axis=1)
    to = place * RHO + row
    tl.store(largest + to, best, mask=row < RHO)
    tl.store(total + to, mass, mask=row < RHO)
    real = (row < RHO)[:, None] & (column < D)[None, :]
    tl.store(part_output + to[:, None] * D + column, joined, mask=real)


@tuned(
    blocks(4, 3, BLOCK_N=32),
    blocks(2, 3, BLOCK_N=32),
    blocks(4, 2, BLOCK_N=64),
    blocks(4, 3, BLOCK_N=64),
    blocks(4, 2, BLOCK_N=128),
    blocks(8, 3, BLOCK_N=128),
    key=["magnitude", "RHO", "D", "PARTS", "KEY_BITS", "VALUE_BITS", "BY_CHANNEL", "SCORES"],
)
@triton.jit
@no_type_check
def attend_to_a_part_of_tables(
    queries, keys, key_scales, key_zeros, slots, partners, values, value_scales, value_zeros,
    raw, largest, total, part_output,
    key_rows, value_rows, firsts, n, magnitude, scale, softcap,
    RHO: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr,
    KEY_BITS: tl.constexpr, KEY_OWN: tl.constexpr, BY_CHANNEL: tl.constexpr,
    VALUES: tl.constexpr, VALUE_BITS: tl.constexpr, VALUE_OWN: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_RHO: tl.constexpr, BLOCK_GROUPS: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    SOFTCAP: tl.constexpr, SCORES: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Attention of a head's queries to one part of one table of keys.

    ``keys``, ``values`` and what belongs to them are tuples, an item per table; ``firsts`` are the
    tables' first parts; like numbers of rows they are `tables_launch.odd`. Writes what
    `decode.attend_to_a_part` writes. Grid: (heads, PARTS).
    """
    head, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line, column = tl.arange(0, BLOCK_RHO * BLOCK_GROUPS), tl.arange(0, BLOCK_D)
    row, group = line // BLOCK_GROUPS, line % BLOCK_GROUPS
    own = (column // GROUP)[None, :] == group[:, None]
    asked = (row < RHO)[:, None] & (column < D)[None, :] & own
    at = (head * RHO + row[:, None]) * D + column
    q = tl.load(queries + at, mask=asked, other=0.0).to(TYPE)
    q_sums = tl.reshape(tl.sum(q.to(tl.float32), axis=1), [BLOCK_RHO, BLOCK_GROUPS])
    for number in tl.static_range(len(KEY_BITS)):
        first, last = number_of(firsts[number]), number_of(firsts[number + 1])
        if (part >= first) & (part < last):
            rows = number_of(key_rows[number])
            rounds = tl.cdiv(tl.cdiv(rows, BLOCK_N), last - first)
            turn = (part - first) * rounds
            attend_to_rows(
                q, q_sums, keys[number], key_scales[number], key_zeros[number],
                slots[number], partners[number], values, value_scales, value_zeros,
                raw, largest, total, part_output, head, head * PARTS + part, rows,
                turn, turn + rounds, n, scale, softcap, value_rows,
                RHO, D, KEY_BITS[number], KEY_OWN[number], BY_CHANNEL[number],
                VALUES, VALUE_BITS, VALUE_OWN, GROUP, BLOCK_RHO, BLOCK_GROUPS, BLOCK_D, BLOCK_N,
                SOFTCAP, SCORES, TYPE,
            )  # fmt: skip
