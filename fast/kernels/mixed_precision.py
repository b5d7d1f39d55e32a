"""Attention of one token to entries stored at several precisions.

Bytes, for N·G heads with ρ query heads each and n entries of d channels, stored at b bits in groups
of g: codes, scales and zero points once for keys and once for values, 2·n·(d·b/8 + 4·d/g), and 4·n
for where each key's value lies. Only where probabilities are asked for: slots, 8·n, raw logits
filled, written and read as float32, 12·ρ·n, and what is handed out, 4·ρ·n, or 4·n if it is reduced.
At 4 bits, d = 128 and g = 64 that is 148 bytes per entry, where 16 bits take 512: at most 3.5 times
as fast. Operations: 4·ρ·n·d, and the unpacking of 2·n·d codes.

Codes are small whole numbers, so that a tensor core multiplies them without rounding: products that
share a scale are added up first, and multiplied by the scale afterwards, in float32. A vector of
channels c in groups g is x̂_c = Δ_g·code_c + z_g, so that

    q · x̂   = Σ_g ( Δ_g · Σ_{c in g} q_c·code_c + z_g · Σ_{c in g} q_c )              keys
    Σ_j p_j·x̂_jc = Σ_j (p_j·Δ_jg) · code_jc + Σ_j p_j·z_jg,   c in g                  values

The inner sums are products of matrices if queries and probabilities are *spread* over rows: row
(r, g) of the queries holds query r in the channels of group g and zeros elsewhere, row (r, g) of
the probabilities holds p·Δ_g. `products_with_keys` and `with_values` are the two lines above, for
the rows of one table; ``offset`` is the last sum. Vectors are the first factor and queries the
second, because tensor cores take 16 rows or more, but 8 columns.

A program of `attend_to_a_part_of_tables` walks the rows of one table of keys. Of each row it knows
the *partner*: in which table of values, and in which row of it, the same entry's value lies. What
the parts leave, the kernel of `decode` combines.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch

from kvlab.fast.kernels import attention, common
from kvlab.fast.kernels.attention import Reduction
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.codes import Coded
from kvlab.fast.kernels.common import constexpr, tl
from kvlab.fast.kernels.decode import launch_combine, new_parts, received_of
from kvlab.fast.kernels.notation import Float, Int, NewestQueries, Tensor
from kvlab.fast.kernels.quantise import unpack
from kvlab.fast.kernels.read_codes import (
    bias_of,
    channels_in_order,
    in_order,
    read_channels,
    read_rows,
    read_scales,
)
from kvlab.fast.kernels.vector_tables import (
    TABLE_SHIFT,
    VectorTable,
    all_in_use,
    in_slots,
    in_turn,
    partners_of,
    room_of,
)

MOST_PARTS_OF_A_WAVE = 16
"""The most parts of a head, for each program that a multiprocessor has: one unpacks codes while
others wait at a barrier, and two warps of each are few."""
MOST_SPREAD = 128
"""Query heads times groups of channels that one program of Triton takes."""


def attend_to_tables(
    queries: NewestQueries,
    keys: Sequence[VectorTable],
    values: Sequence[VectorTable],
    entries: int,
    softcap: float | None = None,
    reduce: Reduction = "none",
    partners: Sequence[Int[Tensor, "N G _"]] | None = None,
) -> tuple[NewestQueries, Tensor]:
    """Attend from one token to entries whose vectors lie in several tables.

    Triton takes codes of 2, 4 and 8 bits whose groups are powers of two, those of values along
    channels, whose rows fill words of 32 bits, up to `MOST_SPREAD` query heads times groups;
    PyTorch takes the others.

    The tables of keys together hold each entry's key once, and those of values its value, each in
    any table; a slot in no table is empty. ``partners`` is what `partners_of` returned for these
    tables, if the caller has kept it: to compute it anew costs 32 bytes per entry. The other
    arguments, and what is returned, are those of `kvlab.fast.kernels.decode.decode_attention`.
    """
    if uses_triton(queries) and suits_triton(keys, values, queries.shape[2]):
        found = partners_of(keys, values, entries) if partners is None else partners
        with common.on_device_of(queries):
            return _attend_in_triton(queries, keys, values, found, entries, softcap, reduce)
    (N, G, rho, _, d), dtype = queries.shape, attention.compute_dtype(queries.dtype)
    scaled = queries.to(dtype).reshape(N * G, rho, d) * d**-0.5
    products, mask = [_products(table, scaled) for table in keys], None
    if turns := in_turn(keys, entries):
        joined = torch.cat([products[number] for number in turns], dim=2)
    else:
        rows = [each.mT.unflatten(0, (N, G)) for each in products]
        joined = in_slots(keys, rows, entries).mT.contiguous()
        if not all_in_use(keys, entries):
            there = in_slots(keys, [table.slots_of_heads >= 0 for table in keys], entries)
            mask = there[:, :, None, None]
    logits = attention.squeezed(joined.view(N, G, rho, 1, entries), softcap)
    weights = attention.softmax(logits, mask)
    outputs = [_weighted(table, weights) for table in values if table.rows]
    return sum(outputs[1:], outputs[0]).to(queries.dtype), received_of(weights, reduce)


def _products(table: VectorTable, queries: Float[Tensor, "NG rho d"]) -> Float[Tensor, "NG rho _"]:
    """Return q·k of every row; codes of channels are multiplied by q·Δ, and q·z is added."""
    (heads, rho, _), dtype = queries.shape, queries.dtype
    if not (table.by_channel and isinstance(table.vectors, Coded)):
        return queries.bmm(table.read(dtype).flatten(0, 1).mT)
    packed, scale, zero = (part.flatten(0, 1) for part in table.vectors.parts)
    codes = unpack(packed, table.bits, table.vectors.length, dtype).flatten(0, 1)
    scaled = (queries.unsqueeze(1) * scale.to(dtype).mT).flatten(0, 1)
    offset = zero.to(dtype).squeeze(3).bmm(queries.mT).view(-1, rho, 1)
    products = torch.baddbmm(offset, scaled, codes).unflatten(0, (heads, -1))
    return products.transpose(1, 2).flatten(2)


def _weighted(table: VectorTable, weights: Float[Tensor, "N G rho 1 n"]) -> NewestQueries:
    """Return the sum of a table's values, each times the weight of its entry."""
    slots = table.slots
    if isinstance(slots, range):
        mine = weights.narrow(4, slots.start, len(slots))
    else:
        places = slots.clamp(min=0)[:, :, None, None].expand(*weights.shape[:4], -1)
        mine = weights.gather(4, places) * (slots >= 0)[:, :, None, None]
    return attention.weighted_values(mine, table.read(weights.dtype))


def suits_triton(keys: Sequence[VectorTable], values: Sequence[VectorTable], rho: int) -> bool:
    """Say whether Triton's kernel reads these formats."""
    for table in (*keys, *values):
        if not isinstance(table.vectors, Coded):
            continue
        length, bits, group = table.vectors.length, table.bits, table.code.group
        fits = bits in (2, 4, 8) and group & (group - 1) == 0
        if table.by_channel:
            fits &= group * bits % 8 == 0
        else:
            fits &= length % group == 0 and length * bits % 32 == 0
            fits &= rho * (length // group) <= MOST_SPREAD
        if not fits:
            return False
    return not any(table.by_channel for table in values)


# --- in Triton ------------------------------------------------------------------------------------


SHIFT = constexpr(TABLE_SHIFT)
ROW = constexpr(2**TABLE_SHIFT - 1)
"""Bits of a partner that are the row."""


@common.kernel
def from_odd(odd):
    """Invert `as_odd`."""
    return (odd - 3) >> 1


@common.kernel
def first_part(shares, number: constexpr, tables: constexpr, parts):
    """Return the first part of a table: each has one, and of the others its share of the rows."""
    return number + (((parts - tables) * from_odd(shares[number]) + 32768) >> 16)


@common.kernel
def products_with_keys(
    q, q_sums, keys, scales, zeros, before, rows, first,
    D: constexpr, BITS: constexpr, OWN: constexpr, BY_CHANNEL: constexpr, GROUP: constexpr,
    BLOCK_RHO: constexpr, BLOCK_GROUPS: constexpr, BLOCK_D: constexpr, BLOCK_N: constexpr,
):  # fmt: skip
    """Dot products ``[BLOCK_RHO, BLOCK_N]`` of queries, spread over groups, with some rows.

    The table has ``before`` rows of other heads in front of this one's.
    """
    shape: constexpr = [BLOCK_RHO, BLOCK_GROUPS, BLOCK_N]
    line = first + tl.arange(0, BLOCK_N)
    there = line < rows
    place = before + line
    if BY_CHANNEL:
        k = read_channels(keys, scales, zeros, before, rows, first, D, BITS, OWN, BLOCK_D, BLOCK_N)
        upper = k
        if q.dtype == tl.float16:  # of which half a scale more is none
            upper = tl.minimum(tl.maximum(k, -65504.0), 65504.0)
        upper = upper.to(q.dtype)
        found = tl.dot(tl.trans(upper), tl.trans(q), input_precision="ieee")
        if q.dtype != tl.float32:  # what rounding cut off
            rest = (k - upper.to(tl.float32)).to(q.dtype)
            found += tl.dot(tl.trans(rest), tl.trans(q))
        found = tl.reshape(tl.trans(found), shape)
    else:
        k = read_rows(keys, place, there, D, BITS, BLOCK_D, q.dtype)
        if BITS < 8:
            k = in_order(k, FOR_SUMS=True)
        found = tl.dot(k, tl.trans(q), input_precision="ieee")
        found = tl.reshape(tl.trans(found), shape)
        if BITS < 16:
            step, zero = read_scales(scales, zeros, place, there, D, OWN, GROUP, BLOCK_GROUPS)
            zero -= bias_of(BITS, q.dtype) * step
            found = found * step[None, :, :] + q_sums[:, :, None] * zero[None, :, :]
    return tl.sum(found, axis=1)


@common.kernel
def scaled_into_reach(numbers, TYPE: constexpr):
    """Return numbers in a format, times a power of two, and by what to multiply to undo that.

    The smallest number of float16 is 6e-8, and beside an attention sink all weights may be far
    below it. So the largest number ``[rows, groups]`` of the last axis is moved to the upper end of
    float16, between 2^14 and 2^15.
    """
    if TYPE.is_fp16():
        up, down = common.into_reach(tl.max(numbers, axis=2))
        numbers = numbers * up[:, :, None]
    else:
        down = tl.full([numbers.shape[0], numbers.shape[1]], 1.0, tl.float32)
    return numbers.to(TYPE), down


@common.kernel
def with_values(
    output, offset, weights, mine, place, values, scales, zeros,
    D: constexpr, BITS: constexpr, OWN: constexpr, GROUP: constexpr, BLOCK_RHO: constexpr,
    BLOCK_GROUPS: constexpr, BLOCK_D: constexpr, BLOCK_N: constexpr, TYPE: constexpr,
    ORDERED: constexpr,
):  # fmt: skip
    """Add the weighted codes of one table to the output, and what zero points add to ``offset``."""
    shape: constexpr = [BLOCK_RHO, BLOCK_GROUPS, BLOCK_N]
    spread = tl.where(mine[None, :], weights, 0.0)[:, None, :]
    if BITS < 16:
        step, zero = read_scales(scales, zeros, place, mine, D, OWN, GROUP, BLOCK_GROUPS)
        offset += tl.sum(spread * zero[None, :, :], axis=2)
        spread, down = scaled_into_reach(spread * step[None, :, :], TYPE)
        offset -= bias_of(BITS, TYPE) * down * tl.sum(spread.to(tl.float32), axis=2)
    else:
        spread, down = scaled_into_reach(tl.broadcast_to(spread, shape), TYPE)
    any_code = mine | (BITS < 8)  # is finite, and has no weight
    v = read_rows(values, place, any_code, D, BITS, BLOCK_D, TYPE, UPRIGHT=not ORDERED)
    if ORDERED:
        v = in_order(v, FOR_SUMS=False)
    p = tl.reshape(spread, [BLOCK_RHO * BLOCK_GROUPS, BLOCK_N])
    if TYPE.is_fp16():
        down = tl.reshape(down, [BLOCK_RHO * BLOCK_GROUPS])[None, :]
        output += down * tl.dot(v, tl.trans(p), input_precision="ieee")
    else:
        output = tl.dot(v, tl.trans(p), output, input_precision="ieee")
    return output, offset


@common.tuned(
    "BLOCK_N AHEAD WAVES",
    (
        (2, 3, 32, 3, 4),
        (2, 3, 32, 3, 8),
        (2, 3, 32, 3, 16),
        (2, 3, 64, 3, 4),
        (2, 3, 64, 3, 8),
        (2, 2, 128, 2, 8),
        (1, 3, 32, 3, 16),
        (2, 4, 64, 4, 4),
        (4, 3, 32, 3, 8),
        (4, 3, 64, 3, 4),
        (4, 3, 128, 3, 4),
    ),
    key=["kind", "RHO", "D", "KEY_BITS", "VALUE_BITS", "BY_CHANNEL", "SCORES"],
)
@common.kernel
def attend_to_a_part_of_tables(
    queries, keys, key_scales, key_zeros, slots, partners, values, value_scales, value_zeros,
    raw, lse, part_output,
    key_rows, key_room, value_room, shares, n, kind, scale, softcap,
    RHO: constexpr, D: constexpr, WAVES: constexpr, KEY_BITS: constexpr, KEY_OWN: constexpr,
    BY_CHANNEL: constexpr, VALUES: constexpr, VALUE_BITS: constexpr, VALUE_OWN: constexpr,
    GROUP: constexpr, BLOCK_RHO: constexpr, BLOCK_GROUPS: constexpr, BLOCK_D: constexpr,
    BLOCK_N: constexpr, SOFTCAP: constexpr, SCORES: constexpr, TYPE: constexpr, AHEAD: constexpr,
):  # fmt: skip
    """Attention of a head's queries to one part of one table of keys.

    ``keys``, ``values`` and what belongs to them are tuples, an item per table; ``shares`` say
    where tables begin, ``room`` the rows from one head to the next; like numbers of rows they went
    through `as_odd`. Writes what `attend_rows` writes. Values of the first table are expected in
    every block; the others are looked for. Grid: (heads, parts), the more parts the more WAVES.
    """
    head, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    row, group = tl.arange(0, BLOCK_RHO), tl.arange(0, BLOCK_GROUPS)
    spread_row = tl.arange(0, BLOCK_RHO * BLOCK_GROUPS)
    q_row = (spread_row // BLOCK_GROUPS)[:, None]
    for number in tl.static_range(len(KEY_BITS)):  # pyright: ignore[reportGeneralTypeIssues]
        first = first_part(shares, number, len(KEY_BITS), parts)
        last = first_part(shares, number + 1, len(KEY_BITS), parts)
        if (part >= first) & (part < last):
            column = channels_in_order(
                BLOCK_D, True, KEY_BITS[number] < 8 and not BY_CHANNEL[number]
            )
            own = (column // GROUP)[None, :] == (spread_row % BLOCK_GROUPS)[:, None]
            asked = (q_row < RHO) & (column < D)[None, :] & own
            q = tl.load(queries + (head * RHO + q_row) * D + column, mask=asked, other=0.0).to(TYPE)
            q_sums = tl.reshape(tl.sum(q.to(tl.float32), axis=1), [BLOCK_RHO, BLOCK_GROUPS])
            rows, before = from_odd(key_rows[number]), head * from_odd(key_room[number])
            rounds = tl.cdiv(tl.cdiv(rows, BLOCK_N), last - first)
            unit = 1.0 if SOFTCAP else scale
            best, mass = (
                tl.full([BLOCK_RHO], float("-inf"), tl.float32),
                tl.zeros([BLOCK_RHO], tl.float32),
            )
            output = tl.zeros([BLOCK_D, BLOCK_RHO * BLOCK_GROUPS], tl.float32)
            offset = tl.zeros([BLOCK_RHO, BLOCK_GROUPS], tl.float32)
            begin = (part - first) * rounds
            for turn in tl.range(begin, begin + rounds, num_stages=AHEAD):  # or it skips the zeros
                line = turn * BLOCK_N + tl.arange(0, BLOCK_N)
                partner = tl.load(partners[number] + head * rows + line, mask=line < rows, other=-1)
                held = partner >= 0
                logits = products_with_keys(
                    q, q_sums, keys[number], key_scales[number], key_zeros[number],
                    before, rows, turn * BLOCK_N,
                    D, KEY_BITS[number], KEY_OWN[number], BY_CHANNEL[number],
                    GROUP, BLOCK_RHO, BLOCK_GROUPS, BLOCK_D, BLOCK_N,
                )  # fmt: skip
                if SOFTCAP:
                    logits = common.squeezed(logits * scale, softcap)
                logits = tl.where(held[None, :], logits, float("-inf"))
                if SCORES:
                    slot = tl.load(slots[number] + head * rows + line, mask=held, other=0)
                    to = raw + (head * RHO + row[:, None]) * n + slot[None, :]
                    tl.store(to, logits * unit, mask=(row < RHO)[:, None] & held[None, :])
                weights, shrink, best, mass = common.soften(logits, unit, best, mass)
                spread = tl.broadcast_to(shrink[:, None], [BLOCK_RHO, BLOCK_GROUPS])
                output = output * tl.reshape(spread, [BLOCK_RHO * BLOCK_GROUPS])[None, :]
                offset = offset * spread
                for table in tl.static_range(len(VALUES)):
                    mine = (partner >> SHIFT) == VALUES[table]
                    if table == 0 or tl.max(mine.to(tl.int32), axis=0) > 0:
                        place = head * from_odd(value_room[table]) + tl.where(
                            mine, partner & ROW, 0
                        )
                        output, offset = with_values(
                            output, offset, weights, mine, place,
                            values[table], value_scales[table], value_zeros[table],
                            D, VALUE_BITS[table], VALUE_OWN[table], GROUP,
                            BLOCK_RHO, BLOCK_GROUPS, BLOCK_D, BLOCK_N, TYPE, VALUE_BITS[0] < 8,
                        )  # fmt: skip
            column = channels_in_order(BLOCK_D, False, VALUE_BITS[0] < 8)
            whole = tl.reshape(tl.trans(output), [BLOCK_RHO, BLOCK_GROUPS, BLOCK_D])
            whole += offset[:, :, None]
            its_group = (column // GROUP)[None, None, :] == group[None, :, None]
            joined = tl.sum(tl.where(its_group, whole, 0.0), axis=1)
            logged, divisor = common.log_mass(best, unit, mass)
            joined = joined / divisor[:, None]
            to = (head * parts + part) * RHO + row
            tl.store(lse + to, logged, mask=row < RHO)
            real = (row < RHO)[:, None] & (column < D)[None, :]
            tl.store(part_output + to[:, None] * D + column, joined, mask=real)


def _attend_in_triton(
    queries: Tensor,
    keys: Sequence[VectorTable],
    values: Sequence[VectorTable],
    partners: Sequence[Tensor],
    entries: int,
    softcap: float | None,
    reduce: Reduction,
) -> tuple[Tensor, Tensor]:
    """Launch once for all tables, and once to combine; values of the largest table come first."""
    N, G, rho, _, d = queries.shape
    heads, scores, tables = N * G, reduce != "skip", (*keys, *values)
    asked = [(table, found) for table, found in zip(keys, partners, strict=True) if table.rows]
    given = sorted(
        ((number, table) for number, table in enumerate(values) if table.rows),
        key=lambda numbered: -numbered[1].rows,
    )
    rows = [table.rows for table, _ in asked]

    def parts(waves: int) -> int:
        block, most = common.ENTRIES_OF_A_PART, MOST_PARTS_OF_A_WAVE * waves
        found = common.split(sum(rows), block, heads, queries.device, waves, most)
        return max(found, common.magnitude(len(rows)))

    kernel = attend_to_a_part_of_tables
    raw, lse, outputs = new_parts(queries, entries, parts(common.most_waves(kernel)), scores)
    if scores:
        raw.fill_(-torch.inf)
    own = (table.code.group for table in tables if table.code and not table.by_channel)
    group = min(own, default=common.magnitude(d))  # the fewest channels that share a scale
    groups = common.magnitude(max(1, d // group))
    key_vectors, key_scales, key_zeros, key_bits, key_own, key_room = zip(
        *(_parts_of(x) for x, _ in asked), strict=True
    )
    value_vectors, value_scales, value_zeros, value_bits, value_own, value_room = zip(
        *(_parts_of(x) for _, x in given), strict=True
    )
    grid = common.GridOfParts((heads,), parts)
    kernel[grid](
        queries.reshape(heads, rho, d).contiguous(),
        key_vectors, key_scales, key_zeros,
        tuple(table.slots_of_heads.contiguous() if scores else raw for table, _ in asked),
        tuple(found.contiguous() for _, found in asked),
        value_vectors, value_scales, value_zeros,
        raw, lse, outputs,
        as_odd(rows), as_odd(key_room), as_odd(value_room), as_odd(shares_of(rows)),
        entries, common.kind_of_call(heads, sum(rows)), d**-0.5, softcap or 0.0,
        KEY_BITS=key_bits, KEY_OWN=key_own, VALUE_BITS=value_bits, VALUE_OWN=value_own,
        BY_CHANNEL=tuple(table.by_channel for table, _ in asked), GROUP=group, BLOCK_GROUPS=groups,
        VALUES=tuple(number for number, _ in given), RHO=rho, D=d, SCORES=scores,
        BLOCK_RHO=max(common.magnitude(rho), 8 // groups), BLOCK_D=common.columns(d),
        SOFTCAP=softcap is not None, TYPE=_product_type(queries, tables),
    )  # fmt: skip
    return launch_combine(raw, lse, outputs, grid.taken, queries, entries, reduce)


def as_odd(numbers: Sequence[int]) -> tuple[int, ...]:
    """Return 2·x + 3 of every number: Triton compiles again for 1 and for multiples of 16."""
    return tuple(2 * number + 3 for number in numbers)


def shares_of(rows: Sequence[int]) -> tuple[int, ...]:
    """Return the share of all rows that lies before each table and behind the last, times 2^16."""
    return tuple((each << 16) // sum(rows) for each in accumulate(rows, initial=0))


def _parts_of(table: VectorTable) -> tuple[Tensor, Tensor, Tensor, int, int, int]:
    """Return a table's parts, bits, channels that share a scale, and rows from head to head.

    Numbers as they are stand in for their own scales. Codes of 4 and 2 bits, and pairs of scales,
    become words of 32 bits, but for those of channels. Parts are copied unless all heads of all of
    them lie equally many rows apart.
    """
    rooms = {room_of(part) for part in table.parts}
    parts, room = table.parts, rooms.pop()
    if rooms or room is None:
        parts, room = tuple(part.contiguous() for part in parts), table.rows
    else:
        room *= table.rows // parts[0].shape[2]
    if isinstance(table.vectors, Tensor):
        (vectors,) = parts
        return vectors, vectors, vectors, table.bits, 0, room
    codes, scale, zero = parts
    if table.bits < 8 and not table.by_channel:
        codes = codes.view(torch.int32)
    if scale.shape[-1] % 2 == 0 and not table.by_channel:
        scale, zero = scale.view(torch.int32), zero.view(torch.int32)
    return codes, scale, zero, table.bits, table.code.group, room


def _product_type(queries: Tensor, tables: Sequence[VectorTable]) -> tl.dtype:
    """Return the number format of products: that of plain vectors, if any, else of the queries."""
    first = next((x.vectors for x in tables if isinstance(x.vectors, Tensor)), queries)
    if common.multiplied_in_float32(first):
        return tl.float32
    return tl.bfloat16 if first.dtype == torch.bfloat16 else tl.float16
