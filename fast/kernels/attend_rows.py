"""The kernel in which rows of queries attend to a part of the entries.

Rows are the query heads of one token (`decode`), or of every token of a block (`prefill`).
"""

from functools import partial
from typing import Any

import torch

from kvlab.fast.kernels import common
from kvlab.fast.kernels.common import constexpr, tl
from kvlab.fast.kernels.notation import Float, Int, Positions, Queries, Tensor, Vectors

SCANNED = constexpr(1024)
"""Positions that are looked at together, to see where a loop begins or ends."""


@common.kernel
def readable(entries_at, n, oldest, newest):
    """Return the first slot that a row at ``oldest`` may not read, and where ``newest`` ends."""
    first, last = tl.full([], 0, tl.int32) + n, tl.full([], 0, tl.int32)
    for block in range(0, tl.cdiv(n, SCANNED)):
        entry = block * SCANNED + tl.arange(0, SCANNED)
        at = tl.load(entries_at + entry, mask=entry < n, other=-1)
        first = tl.minimum(first, tl.min(tl.where((at >= 0) & (at <= oldest), n, entry), axis=0))
        reads = (at >= 0) & (at <= newest)
        last = tl.maximum(last, tl.max(tl.where(reads, entry + 1, 0), axis=0))
    return first, last


@common.kernel
def without_hidden(logits, some, held, entry_at, row_at):
    """Return logits, −inf where a row may not read; only looked at if there are ``some``."""
    if some:
        reads = held[None, :] & (entry_at[None, :] <= row_at[:, None])
        logits = tl.where(reads, logits, float("-inf"))
    return logits


@common.kernel
def logits_of_block(q, k, scale, softcap, SOFTCAP: constexpr):
    """Return logits ``[rows, entries]``, also of entries that a row may not read.

    Without SOFTCAP they are still to be multiplied by ``scale``.
    """
    products = tl.dot(q, tl.trans(k), input_precision="ieee")
    if SOFTCAP:
        products = common.squeezed(products * scale, softcap)
    return products


@partial(common.kernel, changing=("m", "n", "rows", "tall", "kind"))
def attend_rows(
    queries, keys, values, rows_at, entries_at, gains, raw, lse, output,
    m, n, rows, tall, kind, heads_of_one, scale, softcap,
    D: constexpr, BLOCK_M: constexpr, BLOCK_N: constexpr, BLOCK_D: constexpr, SOFTCAP: constexpr,
    WIDE: constexpr, SCORES: constexpr, WITH_VALUES: constexpr, EARLY: constexpr = False,
    WAVES: constexpr = 0,
):  # fmt: skip
    """Attention of a head's rows to one part of its entries.

    Writes each row's log-sum-exp, −inf where it reads nothing; WITH_VALUES the output; with SCORES
    the logits. Where entries have positions, slots may be empty; where rows have them, too, a row
    reads entries at or before its own. ``queries``, ``keys``, ``values`` and ``entries_at`` are
    `Rows`. ``tall`` and ``kind`` are for the tuner, which reads arguments by name, WAVES for the
    grid. With WIDE, products are formed in float32, else in the stored number format; sums are
    always float32. Grid: (heads, blocks of rows, parts); a program walks the blocks of its share.
    With EARLY the next kernel may start, and wait.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    head, block_m, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    sequence = head // heads_of_one
    row, column = block_m * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    inside, end, whole = row < rows, n, 0
    q = common.read_vectors(queries, head, row, inside, D, BLOCK_D, WIDE)
    gain = tl.full([BLOCK_M], 1.0, tl.float32)
    if gains is not None:
        gain = tl.load(gains + sequence * m + row % m, mask=inside, other=1.0)
    if rows_at is not None:
        row_at = tl.load(rows_at + sequence * m + row % m, mask=inside, other=-1)
        oldest = tl.min(tl.where(inside, row_at, 2147483647), axis=0)
        newest = tl.max(row_at, axis=0)
        whole, end = readable(entries_at.data + head * entries_at.head, n, oldest, newest)
    best, mass = tl.full([BLOCK_M], float("-inf"), tl.float32), tl.zeros([BLOCK_M], tl.float32)
    unit = 1.0 if SOFTCAP else scale
    found = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    begin, end = common.share_of(part, tl.num_programs(2), end)
    for first in range(begin, end, BLOCK_N):
        entry = first + tl.arange(0, BLOCK_N)
        there = entry < end
        held = there
        if entries_at is not None:
            at = entries_at.data + head * entries_at.head + entry
            entry_at = tl.load(at, mask=there, other=-1)
            held = entry_at >= 0
        wanted = held if rows_at is None else there  # of empty slots a token reads nothing
        k = common.read_vectors(keys, head, entry, wanted, D, BLOCK_D, WIDE)
        logits = logits_of_block(q, k, scale, softcap, SOFTCAP) * gain[:, None]
        if rows_at is None:
            logits = tl.where(held[None, :], logits, float("-inf"))
        else:
            some = first + BLOCK_N > tl.minimum(whole, end)
            logits = without_hidden(logits, some, held, entry_at, row_at)
        if SCORES:
            to = (head * rows + row[:, None]) * n + entry
            tl.store(raw + to, logits * unit, mask=inside[:, None] & there[None, :])
        weights, shrink, best, mass = common.soften(logits, unit, best, mass)
        if WITH_VALUES:
            v = common.read_vectors(values, head, entry, held, D, BLOCK_D, WIDE)
            product = tl.dot(common.in_reach(weights, v.dtype), v, input_precision="ieee")
            found = found * shrink[:, None] + common.out_of_reach(product, v.dtype)
    logged, whole = common.log_mass(best, unit, mass)
    place = (head * tl.num_programs(2) + part) * rows + row
    tl.store(lse + place, logged, mask=inside)
    if WITH_VALUES:
        to = output + place[:, None] * D + column
        found = (found / whole[:, None]).to(output.dtype.element_ty)
        tl.store(to, found, mask=inside[:, None] & (column < D)[None, :])


def arguments_of(
    queries: Queries,
    keys: Vectors,
    rows_at: Int[Tensor, "N m"] | None,
    positions: Positions | None,
    gains: Float[Tensor, "N m"] | None,
    softcap: float | None,
) -> dict[str, Any]:
    """Return rows, the entries that they read, numbers and constants, as kernels take them.

    Rows of all query heads of a KV head follow one another: row r belongs to query head r // m and
    to the token r % m.
    """
    N, G, rho, m, d = queries.shape
    flat = queries.to(keys.dtype).reshape(N * G, rho * m, d).contiguous()
    return {
        "queries": common.rows_of(flat),
        "keys": common.rows_of(common.per_head(keys)),
        "rows_at": None if rows_at is None else rows_at.contiguous(),
        "entries_at": None if positions is None else common.rows_of(common.per_head(positions)),
        "gains": None if gains is None else gains.to(torch.float32).contiguous(),
        "m": m,
        "n": keys.shape[2],
        "rows": rho * m,
        "tall": common.magnitude(rho * m),
        "kind": common.kind_of_call(N * G, keys.shape[2]),
        "heads_of_one": G,
        "scale": d**-0.5,
        "softcap": softcap or 0.0,
        "D": d,
        "BLOCK_D": common.columns(d),
        "SOFTCAP": softcap is not None,
        "WIDE": common.multiplied_in_float32(keys),
    }
