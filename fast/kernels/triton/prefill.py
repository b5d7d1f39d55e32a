"""Attention of a block's rows without its matrix: outputs, log-sum-exps, and sums over rows.

Rows of all query heads of a KV head follow one another: row r belongs to query head r // m and to
the block's token r % m. Kernels skip entries that no row of a block may read.
"""

# pyright: reportArgumentType=false
# Triton makes constexpr of plain numbers.

from dataclasses import dataclass
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvlab.fast.kernels.triton.common import (
    blocks,
    in_reach,
    magnitude,
    on_its_device,
    out_of_reach,
    per_head,
    split,
    squeezed,
    tuned,
)

SCANNED = tl.constexpr(1024)
"""Positions that are looked at together, to see where a loop begins or ends."""


@triton.jit
@no_type_check
def end_of_readable(entries_at, n, newest):
    """Return the slot after the last entry at or before position ``newest``."""
    last = tl.full([], 0, tl.int32)
    for block in range(0, tl.cdiv(n, SCANNED)):
        entry = block * SCANNED + tl.arange(0, SCANNED)
        at = tl.load(entries_at + entry, mask=entry < n, other=-1)
        reads = (at >= 0) & (at <= newest)
        last = tl.maximum(last, tl.max(tl.where(reads, entry + 1, 0), axis=0))
    return last


@triton.jit
@no_type_check
def first_reader(rows_at, m, oldest):
    """Return the first row at or after position ``oldest``, m if there is none."""
    first = tl.full([], 0, tl.int32) + m
    for block in range(0, tl.cdiv(m, SCANNED)):
        row = block * SCANNED + tl.arange(0, SCANNED)
        at = tl.load(rows_at + row, mask=row < m, other=-1)
        first = tl.minimum(first, tl.min(tl.where(at >= oldest, row, m), axis=0))
    return first


@triton.jit
@no_type_check
def logits_of_block(
    q, k, row_at, entry_at, gain, scale, softcap, SOFTCAP: tl.constexpr, GAIN: tl.constexpr
):
    """Return logits ``[rows, entries]``, −inf where a row may not read."""
    logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if SOFTCAP:
        logits = squeezed(logits, softcap)
    if GAIN:
        logits = logits * gain[:, None]
    reads = (entry_at >= 0)[None, :] & (entry_at[None, :] <= row_at[:, None])
    return tl.where(reads, logits, float("-inf"))


@tuned(
    blocks(4, 3, BLOCK_M=32, BLOCK_N=32),
    blocks(4, 3, BLOCK_M=64, BLOCK_N=64),
    blocks(8, 3, BLOCK_M=64, BLOCK_N=64),
    blocks(8, 3, BLOCK_M=128, BLOCK_N=64),
    key=["magnitude", "tall", "D", "WIDE", "SOFTCAP", "WITH_VALUES"],
)
@triton.jit
@no_type_check
def attend_rows(
    queries, keys, values, rows_at, entries_at, gains, lse, output,
    m, n, rows, tall, magnitude, parts, scale, softcap,
    q_head, q_row, k_head, k_row, v_head, v_row, e_head, heads_of_one,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    SOFTCAP: tl.constexpr, GAIN: tl.constexpr, WIDE: tl.constexpr, WITH_VALUES: tl.constexpr,
):  # fmt: skip
    """Write each row's log-sum-exp over one part of the entries and, WITH_VALUES, the output.

    The log-sum-exp of a row that reads nothing is −inf. Grid: (heads, blocks of rows, parts);
    outputs need one part.
    """
    head, block_m, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    sequence = head // heads_of_one
    row, column = block_m * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    inside, real = row < rows, column < D
    place = head * q_head + row[:, None].to(tl.int64) * q_row + column
    q = tl.load(queries + place, mask=inside[:, None] & real[None, :], other=0.0)
    if WIDE:
        q = q.to(tl.float32)
    row_at = tl.load(rows_at + sequence * m + row % m, mask=inside, other=-1)
    gain = tl.full([BLOCK_M], 1.0, tl.float32)
    if GAIN:
        gain = tl.load(gains + sequence * m + row % m, mask=inside, other=1.0)
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    found = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    end = end_of_readable(entries_at + head * e_head, n, tl.max(row_at, axis=0))
    rounds = tl.cdiv(tl.cdiv(end, BLOCK_N), parts)
    for block in range(part * rounds, (part + 1) * rounds):
        entry = block * BLOCK_N + tl.arange(0, BLOCK_N)
        there = (entry < n)[:, None] & real[None, :]
        entry_at = tl.load(entries_at + head * e_head + entry, mask=entry < n, other=-1)
        at = head * k_head + entry[:, None].to(tl.int64) * k_row + column
        k = tl.load(keys + at, mask=there, other=0.0)
        if WIDE:
            k = k.to(tl.float32)
        logits = logits_of_block(q, k, row_at, entry_at, gain, scale, softcap, SOFTCAP, GAIN)
        now = tl.maximum(best, tl.max(logits, axis=1))
        anchor = tl.where(now == float("-inf"), 0.0, now)
        weights = tl.exp(logits - anchor[:, None])
        shrink = tl.exp(best - anchor)
        mass = mass * shrink + tl.sum(weights, axis=1)
        if WITH_VALUES:
            at = head * v_head + entry[:, None].to(tl.int64) * v_row + column
            v = tl.load(values + at, mask=there, other=0.0)
            if WIDE:
                v = v.to(tl.float32)
            product = tl.dot(in_reach(weights, v.dtype), v, input_precision="ieee")
            found = found * shrink[:, None] + out_of_reach(product, v.dtype)
        best = now
    whole = tl.where(mass > 0, mass, 1.0)
    logged = tl.where(mass > 0, best + tl.log(whole), float("-inf"))
    tl.store(lse + (head * parts + part) * rows + row, logged, mask=inside)
    if WITH_VALUES:
        to = output + (head * rows + row[:, None]) * D + column
        found = (found / whole[:, None]).to(output.dtype.element_ty)
        tl.store(to, found, mask=inside[:, None] & real[None, :])


@tuned(
    blocks(4, 3, BLOCK_M=32, BLOCK_N=32),
    blocks(4, 3, BLOCK_M=64, BLOCK_N=64),
    blocks(8, 3, BLOCK_M=64, BLOCK_N=64),
    blocks(8, 3, BLOCK_M=128, BLOCK_N=64),
    key=["magnitude", "tall", "D", "WIDE", "SOFTCAP"],
)
@triton.jit
@no_type_check
def column_sums(
    queries, keys, rows_at, entries_at, gains, lse, sums,
    m, n, rows, tall, magnitude, scale, softcap,
    q_head, q_row, k_head, k_row, e_head, heads_of_one,
    RHO: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SOFTCAP: tl.constexpr, GAIN: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Add up what every entry received from all rows of all query heads of its head.

    Each sum is made by one program, in one order. Grid: (heads, blocks of entries).
    """
    head, block_n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence = head // heads_of_one
    entry, column = block_n * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    there, real = entry < n, column < D
    entry_at = tl.load(entries_at + head * e_head + entry, mask=there, other=-1)
    place = head * k_head + entry[:, None].to(tl.int64) * k_row + column
    k = tl.load(keys + place, mask=there[:, None] & real[None, :], other=0.0)
    if WIDE:
        k = k.to(tl.float32)
    total = tl.zeros([BLOCK_N], tl.float32)
    oldest = tl.min(tl.where(entry_at >= 0, entry_at, 2147483647), axis=0)
    begin = first_reader(rows_at + sequence * m, m, oldest)
    for group in range(RHO):
        for block in range(begin // BLOCK_M, tl.cdiv(m, BLOCK_M)):
            token = block * BLOCK_M + tl.arange(0, BLOCK_M)
            inside, row = token < m, group * m + token
            at = head * q_head + row[:, None].to(tl.int64) * q_row + column
            q = tl.load(queries + at, mask=inside[:, None] & real[None, :], other=0.0)
            if WIDE:
                q = q.to(tl.float32)
            row_at = tl.load(rows_at + sequence * m + token, mask=inside, other=-1)
            log_sum = tl.load(lse + head * rows + row, mask=inside, other=0.0)
            log_sum = tl.where(log_sum == float("-inf"), 0.0, log_sum)
            gain = tl.full([BLOCK_M], 1.0, tl.float32)
            if GAIN:
                gain = tl.load(gains + sequence * m + token, mask=inside, other=1.0)
            logits = logits_of_block(q, k, row_at, entry_at, gain, scale, softcap, SOFTCAP, GAIN)
            total += tl.sum(tl.exp(logits - log_sum[:, None]), axis=0)
    tl.store(sums + head * n + entry, total, mask=there)


# --- launching ------------------------------------------------------------------------------------

ENTRIES = 512
"""Least number of entries in a part of a row's log-sum-exp, if there are so many."""
ROWS = 64
"""Rows of a program that the choice of the number of parts assumes."""


@dataclass(frozen=True)
class Rows:
    """A block of queries and the entries that it reads, as kernels take them."""

    queries: Tensor
    keys: Tensor
    rows_at: Tensor
    entries_at: Tensor
    gains: Tensor
    sizes: dict[str, Any]
    """Numbers and constants that all kernels take."""


def prepared(
    queries: Tensor,
    keys: Tensor,
    query_positions: Tensor,
    positions: Tensor,
    gains: Tensor | None,
    softcap: float | None,
) -> Rows:
    """Bring a block into the layout of the kernels."""
    N, G, rho, m, d = queries.shape
    rows = rho * m
    flat_queries = queries.to(keys.dtype).reshape(N * G, rows, d).contiguous()
    flat_keys, entries_at = per_head(keys), per_head(positions)
    rows_at = query_positions.contiguous()
    sizes = {
        "m": m,
        "n": keys.shape[2],
        "rows": rows,
        "tall": magnitude(rows),
        "magnitude": magnitude(keys.shape[2]),
        "scale": d**-0.5,
        "softcap": softcap or 0.0,
        "q_head": flat_queries.stride(0),
        "q_row": flat_queries.stride(1),
        "k_head": flat_keys.stride(0),
        "k_row": flat_keys.stride(1),
        "e_head": entries_at.stride(0),
        "heads_of_one": G,
        "D": d,
        "BLOCK_D": max(16, magnitude(d)),
        "SOFTCAP": softcap is not None,
        "GAIN": gains is not None,
        "WIDE": keys.dtype == torch.float32
        or (keys.dtype == torch.bfloat16 and keys.device.type == "cpu"),
    }
    row_gains = rows_at if gains is None else gains.to(torch.float32).contiguous()
    return Rows(flat_queries, flat_keys, rows_at, entries_at, row_gains, sizes)


@on_its_device
def attend_block_triton(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    query_positions: Tensor,
    positions: Tensor,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """Do what `attend_block` says, in Triton."""
    N, G, rho, m, d = queries.shape
    block = prepared(queries, keys, query_positions, positions, None, softcap)
    flat_values = per_head(values)
    heads, rows = N * G, rho * m
    lse = torch.empty((heads, rows), dtype=torch.float32, device=keys.device)
    output = torch.empty((heads, rows, d), dtype=keys.dtype, device=keys.device)
    attend_rows[lambda sizes: (heads, triton.cdiv(rows, sizes["BLOCK_M"]), 1)](
        block.queries, block.keys, flat_values, block.rows_at, block.entries_at, block.gains,
        lse, output, parts=1, v_head=flat_values.stride(0), v_row=flat_values.stride(1),
        WITH_VALUES=True, **block.sizes,
    )  # fmt: skip
    return output.view(queries.shape), lse.view(N, G, rho, m)


def log_sums(block: Rows) -> Tensor:
    """Return every row's log-sum-exp ``[heads, rows]``; its entries are shared out over parts."""
    heads, rows, n = block.queries.shape[0], block.sizes["rows"], block.sizes["n"]
    programs = heads * triton.cdiv(rows, ROWS)
    parts = split(n, ENTRIES, programs, block.keys.device)
    lse = torch.empty((heads, parts, rows), dtype=torch.float32, device=block.keys.device)
    attend_rows[lambda sizes: (heads, triton.cdiv(rows, sizes["BLOCK_M"]), parts)](
        block.queries, block.keys, block.keys, block.rows_at, block.entries_at, block.gains,
        lse, lse, parts=parts, v_head=0, v_row=0, WITH_VALUES=False, **block.sizes,
    )  # fmt: skip
    return torch.logsumexp(lse, dim=1)


@on_its_device
def received_attention_triton(
    queries: Tensor,
    keys: Tensor,
    query_positions: Tensor,
    positions: Tensor,
    gains: Tensor | None,
    softcap: float | None,
    lse: Tensor | None,
) -> Tensor:
    """Do what `received_attention` says, in Triton."""
    N, G, rho, m, _ = queries.shape
    heads, n = N * G, keys.shape[2]
    block = prepared(queries, keys, query_positions, positions, gains, softcap)
    known = log_sums(block) if lse is None else lse.reshape(heads, rho * m).contiguous()
    sums = torch.empty((heads, n), dtype=torch.float32, device=keys.device)
    column_sums[lambda sizes: (heads, triton.cdiv(n, sizes["BLOCK_N"]))](
        block.queries, block.keys, block.rows_at, block.entries_at, block.gains, known, sums,
        RHO=rho, **block.sizes,
    )  # fmt: skip
    return sums.view(N, G, n)
