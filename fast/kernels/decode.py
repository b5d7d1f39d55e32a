"""Attention of one new token that also hands scores their probabilities.

In Triton two launches: entries are shared out over programs, then what the parts found is combined.

Bytes, for N·G heads with ρ query heads each, n entries of d channels of e bytes: keys and values
once, 2·n·d·e; raw logits written and read again as float32, 8·ρ·n, and what is received written,
4·n. The logits are ρ/(d·e/4) of the cache: 6 % for ρ = 4, d = 128, 16 bits. Operations: 4·ρ·n·d.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvlab.fast.kernels import attention, common
from kvlab.fast.kernels.attention import Reduction
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.common import tl, triton


@dataclass(frozen=True)
class RecurrenceCounters:
    """How often entries are read again, in columns of equal strides, which attention updates."""

    elapsed: Int[Tensor, "N G n"]
    """Tokens since the entry was last active: since what it received reached the threshold."""
    interval: Int[Tensor, "N G n"]
    """Longest time between two activations."""
    threshold: float


def count_recurrence(
    elapsed: Int[Tensor, "N G n"],
    interval: Int[Tensor, "N G n"],
    active: Bool[Tensor, "N G n"],
    counts: Bool[Tensor, "N G n"],
) -> None:
    """Take in what a token activated, in place.

    ``counts`` are the active entries whose time since the last activation, or since before their
    birth, counts as an interval.
    """
    interval.clamp_(min=elapsed * counts)
    elapsed.masked_fill_(active, 0)


def decode_attention(
    queries: Float[Tensor, "N G rho 1 d"],
    keys: Float[Tensor, "N G n d"],
    values: Float[Tensor, "N G n d"],
    positions: Int[Tensor, "N G n"] | None = None,
    softcap: float | None = None,
    reduce: Reduction = "none",
    counters: RecurrenceCounters | None = None,
) -> tuple[Float[Tensor, "N G rho 1 d"], Tensor]:
    """Attend from one token to all entries; logits are q·k/√d, squeezed into ``softcap``.

    Keys and values may have any strides, with channels next to each other. Positions of -1 mark
    empty slots. ``reduce`` says how to join the query heads of a KV head; counters need it.

    Returns:
        The output, and the probabilities ``[N, G, rho, 1, n]`` or, reduced, ``[N, G, n]``, float32;
        with ``skip`` an empty tensor.
    """
    if counters is not None and reduce in ("none", "skip"):
        raise ValueError(f"counters need reduce = 'sum', 'mean' or 'max', not {reduce!r}")
    if uses_triton(queries):
        return _attend_in_triton(queries, keys, values, positions, softcap, reduce, counters)
    dtype = attention.compute_dtype(keys.dtype)
    mask = None if positions is None else (positions >= 0)[:, :, None, None]
    output, weights = attention.attend(
        queries.to(dtype), keys.to(dtype), values.to(dtype), mask, softcap
    )
    received = handed_out(weights, reduce)
    if counters is not None:
        active = received >= counters.threshold
        counters.elapsed.add_(1)
        count_recurrence(counters.elapsed, counters.interval, active, counts=active)
    return output.to(queries.dtype), received


def handed_out(weights: Float[Tensor, "N G rho 1 n"], reduce: Reduction) -> Tensor:
    """Return what is asked for of the probabilities of one token."""
    if reduce == "none":
        return weights
    if reduce == "skip":
        return weights.new_empty(0)
    return attention.reduce_group(weights[:, :, :, 0], reduce)


# --- in Triton ------------------------------------------------------------------------------------


SCANNED = tl.constexpr(1024)
"""Positions that are looked at together, to see where a loop begins or ends."""


@common.kernel
def end_of_readable(entries_at, n, newest):
    """Return the slot after the last entry at or before position ``newest``."""
    last = tl.full([], 0, tl.int32)
    for block in range(0, tl.cdiv(n, SCANNED)):
        entry = block * SCANNED + tl.arange(0, SCANNED)
        at = tl.load(entries_at + entry, mask=entry < n, other=-1)
        reads = (at >= 0) & (at <= newest)
        last = tl.maximum(last, tl.max(tl.where(reads, entry + 1, 0), axis=0))
    return last


@common.kernel
def logits_of_block(q, k, scale, softcap, SOFTCAP: tl.constexpr):
    """Return logits ``[rows, entries]``, also of entries that a row may not read."""
    logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if SOFTCAP:
        logits = common.squeezed(logits, softcap)
    return logits


@partial(common.kernel, changing=("m", "n", "rows", "tall", "magnitude", "parts"))
def attend_rows(
    queries, keys, values, rows_at, entries_at, gains, raw, lse, output,
    m, n, rows, tall, magnitude, parts, heads_of_one, scale, softcap,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    SOFTCAP: tl.constexpr, WIDE: tl.constexpr, SCORES: tl.constexpr, WITH_VALUES: tl.constexpr,
    EARLY: tl.constexpr = False,
):  # fmt: skip
    """Attention of a head's rows to one part of its entries.

    Writes each row's log-sum-exp, −inf where it reads nothing; WITH_VALUES the output; with SCORES
    the logits. Where entries have positions, slots may be empty; where rows have them, too, a row
    reads entries at or before its own. ``queries``, ``keys``, ``values`` and ``entries_at`` are
    `Rows`. ``tall`` and ``magnitude`` are for the tuner, which reads arguments by name. With WIDE,
    products are formed in float32, else in the stored number format; sums are always float32. Grid:
    (heads, blocks of rows, parts); a program walks the blocks of its share. With EARLY the next
    kernel may start, and wait.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    head, block_m, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    sequence = head // heads_of_one
    row, column = block_m * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    inside, end = row < rows, n
    q = common.read_vectors(queries, head, row, inside, D, BLOCK_D, WIDE)
    gain = tl.full([BLOCK_M], 1.0, tl.float32)
    if gains is not None:
        gain = tl.load(gains + sequence * m + row % m, mask=inside, other=1.0)
    if rows_at is not None:
        row_at = tl.load(rows_at + sequence * m + row % m, mask=inside, other=-1)
        end = end_of_readable(entries_at.data + head * entries_at.head, n, tl.max(row_at, axis=0))
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_M], tl.float32)
    found = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    begin, end = common.share_of(part, parts, end)
    for first in range(begin, end, BLOCK_N):
        entry = first + tl.arange(0, BLOCK_N)
        there = entry < end
        held = there
        if entries_at is not None:
            at = entries_at.data + head * entries_at.head + entry
            entry_at = tl.load(at, mask=there, other=-1)
            held = entry_at >= 0
        k = common.read_vectors(keys, head, entry, held, D, BLOCK_D, WIDE)
        logits = logits_of_block(q, k, scale, softcap, SOFTCAP) * gain[:, None]
        reads = held[None, :]
        if rows_at is not None:
            reads = reads & (entry_at[None, :] <= row_at[:, None])
        logits = tl.where(reads, logits, float("-inf"))
        if SCORES:
            to = raw + (head * rows + row[:, None]) * n + entry
            tl.store(to, logits, mask=inside[:, None] & there[None, :])
        weights, shrink, best, mass = common.soften(logits, best, mass)
        if WITH_VALUES:
            v = common.read_vectors(values, head, entry, held, D, BLOCK_D, WIDE)
            product = tl.dot(common.in_reach(weights, v.dtype), v, input_precision="ieee")
            found = found * shrink[:, None] + common.out_of_reach(product, v.dtype)
    logged, whole = common.log_mass(best, mass)
    place = (head * parts + part) * rows + row
    tl.store(lse + place, logged, mask=inside)
    if WITH_VALUES:
        to = output + place[:, None] * D + column
        found = (found / whole[:, None]).to(output.dtype.element_ty)
        tl.store(to, found, mask=inside[:, None] & (column < D)[None, :])


attend_to_parts = common.tuned(
    common.blocks(4, 3, BLOCK_N=32),
    common.blocks(4, 5, BLOCK_N=32),
    common.blocks(2, 4, BLOCK_N=32),
    common.blocks(4, 3, BLOCK_N=64),
    common.blocks(4, 4, BLOCK_N=64),
    common.blocks(8, 4, BLOCK_N=64),
    common.blocks(8, 3, BLOCK_N=128),
    key=["magnitude", "rows", "D", "WIDE", "SCORES", "SOFTCAP"],
)(attend_rows)
"""The rows are the query heads of one token."""


@common.kernel
def joined_softmax(lse, head, row, parts, RHO: tl.constexpr, BLOCK_PARTS: tl.constexpr):
    """Return the weights of parts ``[parts, rows]``, and what makes logits probabilities.

    That is: what to subtract from them, and by what to multiply their exponentials.
    """
    part = tl.arange(0, BLOCK_PARTS)
    known = (part < parts)[:, None] & (row < RHO)[None, :]
    place = (head * parts + part[:, None]) * RHO + row[None, :]
    logged = tl.load(lse + place, mask=known, other=float("-inf"))
    best = tl.max(logged, axis=0)
    anchor = tl.where(best == float("-inf"), 0.0, best)
    shares = tl.exp(logged - anchor[None, :])
    mass = tl.sum(shares, axis=0)
    inverse = 1.0 / tl.where(mass == 0, 1.0, mass)
    return shares * inverse[None, :], anchor, inverse


@partial(common.kernel, changing=("n", "parts"))
def combine(
    raw, lse, part_output, output, received, elapsed, interval,
    n, parts, threshold, s_head,
    RHO: tl.constexpr, D: tl.constexpr, BLOCK_RHO: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_PARTS: tl.constexpr, REDUCE: tl.constexpr, COUNT: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Turn raw logits into probabilities, and the parts' outputs into one.

    REDUCE is ``none`` (probabilities replace the logits), ``skip``, or ``sum``, ``mean`` or ``max``
    over the query heads of a KV head. With COUNT, what was received updates the counters of
    every entry's recurrence in place. Grid: (heads, RHO + blocks of entries); the first RHO
    programs of a head write a row of the output each. With EARLY it starts before the parts are
    there.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
    head, turn = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if turn < RHO:
        part, column = tl.arange(0, BLOCK_PARTS), tl.arange(0, BLOCK_D)
        line = (head * parts + part) * RHO + turn
        real = (part < parts)[:, None] & (column < D)[None, :]
        pieces = tl.load(part_output + line[:, None] * D + column, mask=real, other=0.0)
        own = turn + tl.arange(0, 1)
        weights = joined_softmax(lse, head, own, parts, RHO, BLOCK_PARTS)[0]
        joined = tl.sum(pieces * weights, axis=0).to(output.dtype.element_ty)
        tl.store(output + (head * RHO + turn) * D + column, joined, mask=column < D)
    elif REDUCE != "skip":
        row, entry = tl.arange(0, BLOCK_RHO), (turn - RHO) * BLOCK_N + tl.arange(0, BLOCK_N)
        there = entry < n
        inside = (row < RHO)[:, None] & there[None, :]
        at = (head * RHO + row[:, None]) * n + entry
        logits = tl.load(raw + at, mask=inside, other=float("-inf"))
        _, anchor, inverse = joined_softmax(lse, head, row, parts, RHO, BLOCK_PARTS)
        probability = tl.exp(logits - anchor[:, None]) * inverse[:, None]
        if REDUCE == "none":
            tl.store(raw + at, probability, mask=inside)
        else:
            if REDUCE == "max":
                nothing_or_nan = tl.sum(probability, axis=0) * 0.0
                reduced = tl.max(probability, axis=0) + nothing_or_nan
            else:
                reduced = tl.sum(probability, axis=0)
            if REDUCE == "mean":
                reduced = reduced / RHO
            tl.store(received + head * n + entry, reduced, mask=there)
            if COUNT:
                at = head * s_head + entry
                since = tl.load(elapsed + at, mask=there, other=0) + 1
                longest = tl.load(interval + at, mask=there, other=0)
                active = reduced >= threshold
                tl.store(
                    interval + at, tl.where(active, tl.maximum(longest, since), longest), mask=there
                )
                tl.store(elapsed + at, tl.where(active, 0, since), mask=there)


TOGETHER = 512
"""Entries whose probabilities a program of `combine` finishes."""


def new_parts(
    queries: Float[Tensor, "N G rho 1 d"], n: int, parts: int, scores: bool
) -> tuple[Tensor, Float[Tensor, "heads parts rho"], Float[Tensor, "heads parts rho d"]]:
    """Allocate what attention to each part of n entries leaves for `combine`.

    Logits ``[heads, rho, n]``, none without ``scores``; log-sum-exps; outputs.
    """
    N, G, rho, _, d = queries.shape
    shapes = ((N * G, rho, n) if scores else (0,), (N * G, parts, rho), (N * G, parts, rho, d))
    raw, lse, outputs = (queries.new_empty(shape, dtype=torch.float32) for shape in shapes)
    return raw, lse, outputs


def combined(
    raw: Tensor,
    lse: Float[Tensor, "heads parts rho"],
    outputs: Float[Tensor, "heads parts rho d"],
    queries: Float[Tensor, "N G rho 1 d"],
    n: int,
    reduce: Reduction,
    counters: RecurrenceCounters | None = None,
) -> tuple[Float[Tensor, "N G rho 1 d"], Tensor]:
    """Return the output and the probabilities, as `decode_attention` does."""
    N, G, rho, _, d = queries.shape
    output = torch.empty_like(queries, memory_format=torch.contiguous_format)
    received = raw.new_empty(0 if reduce in ("none", "skip") else (N, G, n))
    elapsed = interval = received
    if counters is not None:
        elapsed, interval = map(common.per_head, (counters.elapsed, counters.interval))
    parts, early = lse.shape[1], common.starts_early(queries.device)
    combine[(N * G, rho + (0 if reduce == "skip" else triton.cdiv(n, TOGETHER)))](
        raw, lse, outputs, output, received, elapsed, interval,
        n, parts, counters.threshold if counters else 0.0, elapsed.stride(0),
        RHO=rho, D=d, BLOCK_RHO=common.magnitude(rho), BLOCK_D=common.magnitude(d),
        BLOCK_N=TOGETHER, BLOCK_PARTS=common.magnitude(parts),
        REDUCE=reduce, COUNT=counters is not None,
        EARLY=early, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return output, raw.view(N, G, rho, 1, n) if reduce == "none" else received


def arguments_of(
    queries: Float[Tensor, "N G rho m d"],
    keys: Float[Tensor, "N G n d"],
    rows_at: Int[Tensor, "N m"] | None,
    positions: Int[Tensor, "N G n"] | None,
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
        "magnitude": common.order(keys.shape[2]),
        "heads_of_one": G,
        "scale": d**-0.5,
        "softcap": softcap or 0.0,
        "D": d,
        "BLOCK_D": common.columns(d),
        "SOFTCAP": softcap is not None,
        "WIDE": common.multiplied_in_float32(keys),
    }


@common.on_its_device
def _attend_in_triton(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor | None,
    softcap: float | None,
    reduce: Reduction,
    counters: RecurrenceCounters | None,
) -> tuple[Tensor, Tensor]:
    N, G, rho = queries.shape[:3]
    n, scores = keys.shape[2], reduce != "skip"
    count = common.split(n, common.ENTRIES_OF_A_PART, N * G, queries.device)
    raw, lse, outputs = new_parts(queries, n, count, scores)
    attend_to_parts[(N * G, 1, count)](
        values=common.rows_of(common.per_head(values)), raw=raw, lse=lse, output=outputs,
        parts=count, BLOCK_M=common.columns(rho), SCORES=scores, WITH_VALUES=True,
        EARLY=common.starts_early(queries.device),
        **arguments_of(queries, keys, None, positions, None, softcap),
    )  # fmt: skip
    return combined(raw, lse, outputs, queries, n, reduce, counters)
