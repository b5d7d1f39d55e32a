"""Attention of one token to tables of 16, 8, 4 and 2 bits, in one pass over their codes.

Codes are small whole numbers, so that a tensor core multiplies them without rounding: what belongs
to a scale is added up first, and multiplied by the scale afterwards, in float32. For that queries
and probabilities are spread over GROUPS rows, one per group of channels. Tensor cores take sixteen
rows whether they are there or not: up to sixteen cost nothing.
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
def unpacked(packed, BITS: tl.constexpr):
    """Return the codes of bytes ``[rows, bytes]``, as signed numbers: those of 8 bits less 128."""
    rows: tl.constexpr = packed.shape[0]
    columns: tl.constexpr = packed.shape[1] * (8 // BITS)
    mask: tl.constexpr = 2**BITS - 1
    if BITS == 8:
        codes = packed ^ 0x80
    elif BITS == 4:
        codes = tl.join(packed & mask, packed >> 4)
    else:
        even = tl.join(packed & mask, (packed >> 4) & mask)
        odd = tl.join((packed >> 2) & mask, packed >> 6)
        codes = tl.join(even, odd)
    return tl.reshape(codes, [rows, columns]).to(tl.int8, bitcast=True)


@triton.jit
@no_type_check
def read_rows(vectors, line, there, D: tl.constexpr, BITS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return rows of a table ``[rows, BLOCK_D]``: numbers of 16 bits or more as they are, or codes."""
    if BITS == 16:
        channel = tl.arange(0, BLOCK_D)
        inside = there[:, None] & (channel < D)[None, :]
        read = tl.load(vectors + line[:, None] * D + channel, mask=inside, other=0.0)
    else:
        per: tl.constexpr = 8 // BITS
        byte = tl.arange(0, BLOCK_D // per)
        inside = there[:, None] & (byte < D // per)[None, :]
        at = vectors + line[:, None] * (D // per) + byte
        read = unpacked(tl.load(at, mask=inside, other=0), BITS)
    return read


@triton.jit
@no_type_check
def read_scales(
    scales, zeros, line, there,
    D: tl.constexpr, BITS: tl.constexpr, OWN: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
):  # fmt: skip
    """Return scales and zero points ``[BLOCK_GROUPS, rows]`` of `unpacked` codes.

    A table's groups have OWN channels; GROUP channels, which divide them, share a row here.
    """
    group = tl.arange(0, BLOCK_GROUPS)
    inside = (group < D // GROUP)[:, None] & there[None, :]
    at = line[None, :] * (D // OWN) + (group * GROUP // OWN)[:, None]
    step = tl.load(scales + at, mask=inside, other=0.0).to(tl.float32)
    zero = tl.load(zeros + at, mask=inside, other=0.0).to(tl.float32)
    if BITS == 8:
        zero += 128.0 * step
    return step, zero


@triton.jit
@no_type_check
def read_channels(
    vectors, scales, zeros, head, rows, first,
    D: tl.constexpr, BITS: tl.constexpr, OWN: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return rows from ``first`` on as ``[BLOCK_D, BLOCK_N]``, where OWN rows of a channel share a scale."""
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
    if BITS == 8:
        zero += 128.0 * step
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
        found = tl.dot(q, upper, input_precision="ieee")
        if q.dtype != tl.float32:  # what rounding cut off
            found += tl.dot(q, (k - upper.to(tl.float32)).to(q.dtype))
        found = tl.reshape(found, shape)
    else:
        k = read_rows(keys, place, there, D, BITS, BLOCK_D).to(q.dtype)
        found = tl.reshape(tl.dot(q, tl.trans(k), input_precision="ieee"), shape)
        if BITS < 16:
            step, zero = read_scales(
                scales, zeros, place, there, D, BITS, OWN, GROUP, BLOCK_GROUPS
            )
            found = found * step[None, :, :] + q_sums[:, :, None] * zero[None, :, :]
    return tl.sum(found, axis=1)


@triton.jit
@no_type_check
def with_values(
    output, offset, weights, mine, place, values, scales, zeros,
    D: tl.constexpr, BITS: tl.constexpr, OWN: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_RHO: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Add the weighted codes of one table to the output, and what zero points add to ``offset``."""
    rows: tl.constexpr = BLOCK_RHO * BLOCK_GROUPS
    spread = tl.where(mine[None, :], weights, 0.0)[:, None, :]
    if BITS < 16:
        step, zero = read_scales(scales, zeros, place, mine, D, BITS, OWN, GROUP, BLOCK_GROUPS)
        offset += tl.sum(spread * zero[None, :, :], axis=2)
        spread = spread * step[None, :, :]
    else:
        spread = tl.broadcast_to(spread, [BLOCK_RHO, BLOCK_GROUPS, BLOCK_N])
    v = read_rows(values, place, mine, D, BITS, BLOCK_D).to(TYPE)
    p = tl.reshape(spread, [rows, BLOCK_N]).to(TYPE)
    return output + tl.dot(p, v, input_precision="ieee"), offset


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
    """Attend to some rows of one table of keys, and to the values of their entries wherever they are.

    Values of the first table are expected in every block; the others are looked for.
    """
    row, column = tl.arange(0, BLOCK_RHO), tl.arange(0, BLOCK_D)
    group = tl.arange(0, BLOCK_GROUPS)
    best = tl.full([BLOCK_RHO], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_RHO], tl.float32)
    output = tl.zeros([BLOCK_RHO * BLOCK_GROUPS, BLOCK_D], tl.float32)
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
        output = output * tl.reshape(spread, [BLOCK_RHO * BLOCK_GROUPS])[:, None]
        offset = offset * spread
        best = now
        for number in tl.static_range(len(VALUES)):
            mine = (partner >> SHIFT) == VALUES[number]
            if number == 0 or tl.max(mine.to(tl.int32), axis=0) > 0:
                at = partner & ROW
                output, offset = with_values(
                    output, offset, weights, mine, head * value_rows[number] + at,
                    values[number], value_scales[number], value_zeros[number],
                    D, VALUE_BITS[number], VALUE_OWN[number], GROUP,
                    BLOCK_RHO, BLOCK_GROUPS, BLOCK_D, BLOCK_N, TYPE,
                )  # fmt: skip
    whole = tl.reshape(output, [BLOCK_RHO, BLOCK_GROUPS, BLOCK_D]) + offset[:, :, None]
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
@triton.jit(do_not_specialize=["key_rows", "value_rows", "firsts"])
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
    tables' first parts. Writes what `decode.attend_to_a_part` writes. Grid: (heads, PARTS).
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
        first, last = firsts[number], firsts[number + 1]
        if (part >= first) & (part < last):
            rounds = tl.cdiv(tl.cdiv(key_rows[number], BLOCK_N), last - first)
            turn = (part - first) * rounds
            attend_to_rows(
                q, q_sums, keys[number], key_scales[number], key_zeros[number],
                slots[number], partners[number], values, value_scales, value_zeros,
                raw, largest, total, part_output, head, head * PARTS + part, key_rows[number],
                turn, turn + rounds, n, scale, softcap, value_rows,
                RHO, D, KEY_BITS[number], KEY_OWN[number], BY_CHANNEL[number],
                VALUES, VALUE_BITS, VALUE_OWN, GROUP, BLOCK_RHO, BLOCK_GROUPS, BLOCK_D, BLOCK_N,
                SOFTCAP, SCORES, TYPE,
            )  # fmt: skip
