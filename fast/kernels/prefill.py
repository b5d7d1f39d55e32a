"""Attention of a block's rows, and what every entry received from them, without their matrix.

Bytes, for N·G heads with ρ query heads, m rows, n entries of d channels of e bytes: `attend_block`
reads keys and values once for every block of the ρ·m rows, and writes outputs, ρ·m·d·e, and
log-sum-exps, 4·ρ·m. `received_attention` reads queries and log-sum-exps once for every block of
entries, keys once, and writes 4·n; without the log-sum-exps, it reads keys once more for every
block of rows. Operations: 4·ρ·m·n·d for attention, 2·ρ·m·n·d for what was received, as much again
for log-sum-exps; half of it where rows and entries are the same tokens, since blocks that no row
may read are passed over. Nothing of size m·n is ever stored.
"""

from typing import Any

import torch

from kvlab.fast.kernels import attention, common
from kvlab.fast.kernels.attend_rows import SCANNED, arguments_of, attend_rows, logits_of_block
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.common import constexpr, tl, triton
from kvlab.fast.kernels.notation import Float, Int, PerEntry, Positions, Queries, Tensor, Vectors


def attend_block(
    queries: Queries,
    keys: Vectors,
    values: Vectors,
    query_positions: Int[Tensor, "N m"],
    positions: Positions,
    softcap: float | None = None,
) -> tuple[Queries, Float[Tensor, "N G rho m"]]:
    """Attend from the rows of a block, and keep what `received_attention` would compute again.

    A row reads entries at or before its own position. Of rows, −1 marks padding, which reads
    nothing; of entries, empty slots. Logits are those of `kvlab.fast.kernels.decode`.

    Returns:
        The output in the keys' number format, zeros for a row that reads nothing, and the logarithm
        of each row's sum of exponentials in float32, −inf there.
    """
    if uses_triton(queries):
        given = arguments_of(queries, keys, query_positions, positions, None, softcap)
        output = torch.empty(queries.shape, dtype=keys.dtype, device=keys.device)
        lse = _rows_attended(given, values, output, parts=1)
        return output, lse.view(queries.shape[:4])
    dtype = attention.compute_dtype(keys.dtype)
    mask = attention.visible(query_positions, positions)
    logits = attention.logits(queries.to(dtype), keys.to(dtype), softcap)
    lse = torch.logsumexp(logits.masked_fill(~mask, -torch.inf), dim=-1)
    output = attention.weighted_values(attention.softmax(logits, mask), values.to(dtype))
    return output.to(keys.dtype), lse


def received_attention(
    queries: Queries,
    keys: Vectors,
    query_positions: Int[Tensor, "N m"],
    positions: Positions,
    gains: Float[Tensor, "N m"] | None = None,
    softcap: float | None = None,
    lse: Float[Tensor, "N G rho m"] | None = None,
) -> PerEntry:
    """Add up the attention that every entry gets, over rows and query heads of its KV head.

    Give the rows that count: all rows for H2O, the last r rows with step gains for AhaKV, a window
    for SnapKV and RPC.

    ``gains`` are factors on each row's logits, after the softcap. ``lse`` is of these rows over
    these entries, where the caller has it from `attend_block`; gains would change it. Positions are
    those of `attend_block`. Sums are float32.
    """
    if gains is not None and lse is not None:
        raise ValueError("lse is that of attention without gains: give one of the two, not both")
    if uses_triton(queries):
        given = arguments_of(queries, keys, query_positions, positions, gains, softcap)
        return _sums_of_columns(given, keys, lse, queries.shape)
    dtype = attention.compute_dtype(keys.dtype)
    queries, keys = queries.to(dtype), keys.to(dtype)
    factors = None if gains is None else gains.to(dtype)[:, None, None, :, None]
    if factors is not None and softcap is None:
        queries, factors = queries * factors, None  # fewer numbers than there are logits
    logits = attention.logits(queries, keys, softcap)
    if factors is not None:
        logits = logits * factors
    attention.hide(logits, attention.visible(query_positions, positions))
    weights = torch.softmax(logits, dim=-1, out=logits)
    beyond = torch.iinfo(positions.dtype).max
    oldest = positions.masked_fill(positions < 0, beyond).amin(dim=-1)
    reads = query_positions[:, None] >= oldest[:, :, None]  # the others got arbitrary weights
    counted = reads[:, :, None].to(dtype).expand(weights.shape[:-1])
    return torch.matmul(counted.flatten(2)[:, :, None], weights.flatten(2, 3))[:, :, 0]


# --- in Triton ------------------------------------------------------------------------------------


@common.kernel
def first_reader(rows_at, m, oldest):
    """Return the first row at or after position ``oldest``, m if there is none."""
    first = tl.full([], 0, tl.int32) + m
    for block in range(0, tl.cdiv(m, SCANNED)):
        row = block * SCANNED + tl.arange(0, SCANNED)
        at = tl.load(rows_at + row, mask=row < m, other=-1)
        first = tl.minimum(first, tl.min(tl.where(at >= oldest, row, m), axis=0))
    return first


BLOCKS = (
    "BLOCK_M BLOCK_N",
    (
        (4, 3, 32, 32),
        (4, 3, 64, 64),
        (8, 3, 64, 64),
        (8, 3, 128, 64),
        (4, 2, 64, 128),
        (8, 2, 128, 128),
        (8, 4, 128, 64),
    ),
)


attend_block_of_rows = common.tuned(
    *BLOCKS, key=["kind", "tall", "D", "WIDE", "SOFTCAP", "WITH_VALUES"]
)(attend_rows)


@common.tuned(*BLOCKS, key=["kind", "tall", "D", "WIDE", "SOFTCAP"])
@common.kernel
def column_sums(
    queries, keys, rows_at, entries_at, gains, lse, sums,
    m, n, rows, tall, kind, heads_of_one, scale, softcap,
    RHO: constexpr, D: constexpr, BLOCK_M: constexpr, BLOCK_N: constexpr, BLOCK_D: constexpr,
    SOFTCAP: constexpr, WIDE: constexpr,
):  # fmt: skip
    """Add up what every entry received from all rows of all query heads of its head.

    Each sum is made by one program, in one order. Grid: (heads, blocks of entries).
    """
    head, block_n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    sequence, entry = head // heads_of_one, block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    there = entry < n
    at = entries_at.data + head * entries_at.head + entry
    entry_at = tl.load(at, mask=there, other=-1)
    k = common.read_vectors(keys, head, entry, there, D, BLOCK_D, WIDE)
    total = tl.zeros([BLOCK_N], tl.float32)
    oldest = tl.min(tl.where(entry_at >= 0, entry_at, 2147483647), axis=0)
    begin = first_reader(rows_at + sequence * m, m, oldest)
    for group in range(RHO):
        for block in range(begin // BLOCK_M, tl.cdiv(m, BLOCK_M)):
            token = block * BLOCK_M + tl.arange(0, BLOCK_M)
            inside, row = token < m, group * m + token
            q = common.read_vectors(queries, head, row, inside, D, BLOCK_D, WIDE)
            row_at = tl.load(rows_at + sequence * m + token, mask=inside, other=-1)
            log_sum = tl.load(lse + head * rows + row, mask=inside, other=0.0)
            log_sum = tl.where(log_sum == float("-inf"), 0.0, log_sum)
            gain = tl.full([BLOCK_M], 1.0, tl.float32)
            if gains is not None:
                gain = tl.load(gains + sequence * m + token, mask=inside, other=1.0)
            logits = logits_of_block(q, k, scale, softcap, SOFTCAP) * gain[:, None]
            if not SOFTCAP:
                logits *= scale
            reads = (entry_at >= 0)[None, :] & (entry_at[None, :] <= row_at[:, None])
            below = tl.where(reads, logits - log_sum[:, None], float("-inf"))
            total += tl.sum(tl.exp(below), axis=0)
    tl.store(sums + head * n + entry, total, mask=there)


ENTRIES = 512
"""Least number of entries in a part of a row's log-sum-exp, if there are so many."""
ROWS = 64
"""Rows of a program that the choice of the number of parts assumes."""


def _rows_attended(
    given: dict[str, Any], values: Tensor, output: Tensor | None, parts: int
) -> Tensor:
    """Launch `attend_rows`; return log-sum-exps ``[heads, parts, rows]``."""
    heads, rows = given["queries"].data.shape[:2]
    lse = values.new_empty((heads, parts, rows), dtype=torch.float32)
    with common.on_device_of(values):
        attend_block_of_rows[lambda sizes: (heads, triton.cdiv(rows, sizes["BLOCK_M"]), parts)](
            values=common.rows_of(common.per_head(values)), raw=None, lse=lse, output=output,
            SCORES=False, WITH_VALUES=output is not None, **given,
        )  # fmt: skip
    return lse


def _sums_of_columns(
    given: dict[str, Any], keys: Tensor, lse: Tensor | None, shape: torch.Size
) -> Tensor:
    """Launch `column_sums` for queries of a shape, after `attend_rows` if there is no ``lse``."""
    (N, G, rho, m), n = shape[:4], keys.shape[2]
    if lse is None:  # entries are shared out over parts
        parts = common.split(n, ENTRIES, N * G * triton.cdiv(rho * m, ROWS), keys.device)
        lse = torch.logsumexp(_rows_attended(given, keys, None, parts), dim=1)
    sums = torch.empty((N, G, n), dtype=torch.float32, device=keys.device)
    with common.on_device_of(keys):
        column_sums[lambda sizes: (N * G, triton.cdiv(n, sizes["BLOCK_N"]))](
            lse=lse.reshape(N * G, rho * m).contiguous(), sums=sums, RHO=rho, **given
        )
    return sums
