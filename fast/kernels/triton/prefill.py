"""Column sums of attention without the matrix: a pass for each row's log-sum-exp, one for sums."""

from typing import no_type_check

import triton
import triton.language as tl

from kvlab.fast.kernels.triton.blocks import squeezed
from kvlab.fast.kernels.triton.tuning import blocks, tuned


@tuned(
    blocks(4, 3, BLOCK_M=32, BLOCK_N=32),
    blocks(4, 3, BLOCK_M=64, BLOCK_N=64),
    blocks(8, 3, BLOCK_M=64, BLOCK_N=64),
    blocks(8, 3, BLOCK_M=128, BLOCK_N=64),
    key=["magnitude", "D", "WIDE", "SOFTCAP"],
)
@triton.jit
@no_type_check
def log_sums(
    queries, keys, rows_at, entries_at, gains, lse,
    m, n, magnitude, scale, softcap, q_head, q_group, q_row, k_head, k_row, e_head, heads_of_one,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, SOFTCAP: tl.constexpr, GAIN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Log of every row's sum of exponentials over the entries that it may read.

    −inf for a row that reads nothing. Grid: (heads, query heads of a KV head, blocks of rows).
    """
    head, group, block_m = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    sequence = head // heads_of_one
    row, column = block_m * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    inside, real = row < m, column < D
    at = head * q_head + group * q_group + row[:, None].to(tl.int64) * q_row + column
    q = tl.load(queries + at, mask=inside[:, None] & real[None, :], other=0.0)
    if WIDE:
        q = q.to(tl.float32)
    row_at = tl.load(rows_at + sequence * m + row, mask=inside, other=-1)
    gain = tl.full([BLOCK_M], 1.0, tl.float32)
    if GAIN:
        gain = tl.load(gains + sequence * m + row, mask=inside, other=1.0)
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    for block in range(0, tl.cdiv(n, BLOCK_N)):
        entry = block * BLOCK_N + tl.arange(0, BLOCK_N)
        there = entry < n
        entry_at = tl.load(entries_at + head * e_head + entry, mask=there, other=-1)
        at = head * k_head + entry[:, None].to(tl.int64) * k_row + column
        k = tl.load(keys + at, mask=there[:, None] & real[None, :], other=0.0)
        if WIDE:
            k = k.to(tl.float32)
        logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if SOFTCAP:
            logits = squeezed(logits, softcap)
        logits = logits * gain[:, None]
        reads = (entry_at >= 0)[None, :] & (entry_at[None, :] <= row_at[:, None])
        logits = tl.where(reads, logits, float("-inf"))
        now = tl.maximum(best, tl.max(logits, axis=1))
        anchor = tl.where(now == float("-inf"), 0.0, now)
        mass = mass * tl.exp(best - anchor) + tl.sum(tl.exp(logits - anchor[:, None]), axis=1)
        best = now
    found = tl.where(mass > 0, best + tl.log(tl.where(mass > 0, mass, 1.0)), float("-inf"))
    tl.store(lse + (head * tl.num_programs(1) + group) * m + row, found, mask=inside)


@tuned(
    blocks(4, 3, BLOCK_M=32, BLOCK_N=32),
    blocks(4, 3, BLOCK_M=64, BLOCK_N=64),
    blocks(8, 3, BLOCK_M=64, BLOCK_N=64),
    blocks(8, 3, BLOCK_M=128, BLOCK_N=64),
    key=["magnitude", "D", "WIDE", "SOFTCAP"],
)
@triton.jit
@no_type_check
def column_sums(
    queries, keys, rows_at, entries_at, gains, lse, sums,
    m, n, magnitude, scale, softcap, q_head, q_group, q_row, k_head, k_row, e_head, heads_of_one,
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
    at = head * k_head + entry[:, None].to(tl.int64) * k_row + column
    k = tl.load(keys + at, mask=there[:, None] & real[None, :], other=0.0)
    if WIDE:
        k = k.to(tl.float32)
    total = tl.zeros([BLOCK_N], tl.float32)
    for group in range(RHO):
        for block in range(0, tl.cdiv(m, BLOCK_M)):
            row = block * BLOCK_M + tl.arange(0, BLOCK_M)
            inside = row < m
            at = head * q_head + group * q_group + row[:, None].to(tl.int64) * q_row + column
            q = tl.load(queries + at, mask=inside[:, None] & real[None, :], other=0.0)
            if WIDE:
                q = q.to(tl.float32)
            row_at = tl.load(rows_at + sequence * m + row, mask=inside, other=-1)
            log_sum = tl.load(lse + (head * RHO + group) * m + row, mask=inside, other=0.0)
            logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            if SOFTCAP:
                logits = squeezed(logits, softcap)
            if GAIN:
                gain = tl.load(gains + sequence * m + row, mask=inside, other=1.0)
                logits = logits * gain[:, None]
            reads = (entry_at >= 0)[None, :] & (entry_at[None, :] <= row_at[:, None])
            received = tl.where(reads, tl.exp(logits - log_sum[:, None]), 0.0)
            total += tl.sum(received, axis=0)
    tl.store(sums + head * n + entry, total, mask=there)
