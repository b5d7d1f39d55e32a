"""Attention of one new token that also hands scores their probabilities.

In Triton two launches: entries are shared out over programs, then what the parts found is combined.

Bytes, for N·G heads with ρ query heads each, n entries of d channels of e bytes: keys and values
once, 2·n·d·e; raw logits written and read again as float32, 8·ρ·n, and what is received written,
4·n. The logits are ρ/(d·e/4) of the cache: 6 % for ρ = 4, d = 128, 16 bits. Operations: 4·ρ·n·d.
"""

from dataclasses import dataclass
from functools import partial

import torch

from kvlab.fast.kernels import attention, common
from kvlab.fast.kernels.attend_rows import arguments_of, attend_rows
from kvlab.fast.kernels.attention import Reduction
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.common import constexpr, tl, triton
from kvlab.fast.kernels.notation import Float, Int, Marks, NewestQueries, Tensor, Vectors


@dataclass(frozen=True)
class RecurrenceCounters:
    """How often entries are read again, in columns of equal strides, which attention updates."""

    elapsed: Int[Tensor, "N G n"]
    """Tokens since the entry was last active: since what it received reached the threshold."""
    interval: Int[Tensor, "N G n"]
    """Longest time between two activations."""
    threshold: float


def decode_attention(
    queries: NewestQueries,
    keys: Vectors,
    values: Vectors,
    positions: Int[Tensor, "N G n"] | None = None,
    softcap: float | None = None,
    reduce: Reduction = "none",
    counters: RecurrenceCounters | None = None,
    exact: NewestQueries | None = None,
) -> tuple[NewestQueries, Tensor]:
    """Attend from one token to all entries; logits are q·k/√d, squeezed into ``softcap``.

    Keys and values may have any strides; Triton copies those whose channels do not lie next to each
    other, or whose heads lie unequally far apart, as in a transposed ``[N, n, G, d]``. Positions
    of -1 mark empty slots. ``reduce`` says how to join the query heads of a KV head; counters need
    it. ``exact`` is filled with the output in the number format of the computation: CAOTE compares
    values with it, for which an output that was rounded for the model is too coarse.

    Returns:
        The output, in the queries' number format, and the probabilities ``[N, G, rho, 1, n]`` or,
        reduced, ``[N, G, n]``, float32; with ``skip`` an empty tensor.
    """
    if counters is not None and reduce in ("none", "skip"):
        raise ValueError(f"counters need reduce = 'sum', 'mean' or 'max', not {reduce!r}")
    if uses_triton(queries):
        N, G, rho, n = *queries.shape[:3], keys.shape[2]
        heads, kernel = N * G, attend_to_parts
        # Into how many parts entries are cut depends on WAVES, which the tuner chooses at launch.
        # The buffers fit any WAVES that it may try, because twice the waves never give fewer parts
        # (`common.split`); the kernel, which is tuned below, packs parts by the WAVES launched.
        parts_of = partial(common.split, n, common.ENTRIES_OF_A_PART, heads, queries.device)
        most_parts = parts_of(common.most_waves(kernel))
        raw, lse, outputs = new_parts(queries, n, most_parts, scores=reduce != "skip")
        # the grid's axis 1 are blocks of rows: one block, since BLOCK_M ≥ rho
        grid = common.GridOfParts((heads, 1), parts_of)
        with common.on_device_of(queries):
            kernel[grid](
                values=common.rows_of(common.per_head(values)), raw=raw, lse=lse, output=outputs,
                BLOCK_M=common.columns(rho), SCORES=reduce != "skip",
                WITH_VALUES=True, EARLY=common.starts_early(queries.device),
                **arguments_of(
                    queries, keys, rows_at=None, positions=positions, gains=None, softcap=softcap
                ),
            )  # fmt: skip
            return launch_combine(
                raw, lse, outputs, grid.taken, queries, n, reduce, counters, exact
            )
    dtype = attention.compute_dtype(keys.dtype)
    mask = None if positions is None else (positions >= 0)[:, :, None, None]
    output, weights = attention.attend(
        queries.to(dtype), keys.to(dtype), values.to(dtype), mask, softcap
    )
    received = received_of(weights, reduce)
    if counters is not None:
        active = received >= counters.threshold
        counters.elapsed.add_(1)
        count_recurrence(counters.elapsed, counters.interval, active, counts=active)
    if exact is not None:
        exact.copy_(output)
    return output.to(queries.dtype), received


def received_of(weights: Float[Tensor, "N G rho 1 n"], reduce: Reduction) -> Tensor:
    """Return what entries receive of one token's probabilities, in the form that is asked for."""
    if reduce == "none":
        return weights
    if reduce == "skip":
        return weights.new_empty(0)
    return attention.reduce_group(weights[:, :, :, 0], reduce)


def count_recurrence(
    elapsed: Int[Tensor, "N G n"], interval: Int[Tensor, "N G n"], active: Marks, counts: Marks
) -> None:
    """Take in what a token activated, in place; ``elapsed`` has counted this token already.

    ``counts`` are the active entries whose elapsed time counts as an interval. For attention above
    and the kernel below, `combine`, these are all active ones. LazyEviction's `observe_token`
    passes fewer with ``stamp_start=first_activation``: an entry's first activation then only starts
    its time.
    """
    interval.clamp_(min=elapsed * counts)
    elapsed.masked_fill_(active, 0)


# --- in Triton ------------------------------------------------------------------------------------


attend_to_parts = common.tuned(
    "BLOCK_N WAVES",
    (  # warps, stages, BLOCK_N, WAVES
        (4, 3, 32, 2),
        (4, 5, 32, 2),
        (2, 4, 32, 2),
        (2, 4, 32, 4),
        (4, 3, 32, 4),
        (4, 3, 64, 2),
        (4, 4, 64, 2),
        (8, 4, 64, 2),
        (8, 4, 64, 1),
        (8, 3, 128, 2),
    ),
    key=["kind", "rows", "D", "WIDE", "SCORES", "SOFTCAP"],
)(attend_rows)
"""The rows are the query heads of one token: ``rows`` is rho, and all are in one block of BLOCK_M.

Most arguments come from `arguments_of`, which `prefill` launches `attend_rows` with, too.
"""


def new_parts(
    queries: NewestQueries, n: int, most_parts: int, scores: bool
) -> tuple[Tensor, Float[Tensor, "heads most_parts rho"], Float[Tensor, "heads most_parts rho d"]]:
    """Allocate what attention to each of at most ``most_parts`` of n entries leaves for `combine`.

    Logits ``[heads, rho, n]``, none without ``scores``; log-sum-exps; outputs.
    """
    N, G, rho, _, d = queries.shape
    of_parts = N * G, most_parts, rho
    shapes = (N * G, rho, n) if scores else (0,), of_parts, (*of_parts, d)
    raw, lse, outputs = (queries.new_empty(shape, dtype=torch.float32) for shape in shapes)
    return raw, lse, outputs


ENTRIES_FINISHED = 512
"""Entries whose probabilities a program of `combine` finishes."""


def launch_combine(
    raw: Tensor,
    lse: Float[Tensor, "heads most_parts rho"],
    outputs: Float[Tensor, "heads most_parts rho d"],
    parts: int,
    queries: NewestQueries,
    n: int,
    reduce: Reduction,
    counters: RecurrenceCounters | None = None,
    exact: NewestQueries | None = None,
) -> tuple[NewestQueries, Tensor]:
    """Launch `combine` on what queries found in the parts; return what `decode_attention` does.

    ``parts`` is the number launched. What they left is packed at the beginning of ``lse`` and
    ``outputs``, as if these were ``[heads, parts, ...]``; the rest of the room is not used.
    """
    N, G, rho, _, d = queries.shape
    output = torch.empty_like(queries, memory_format=torch.contiguous_format)
    exact_out = exact if exact is None else exact.contiguous()
    received = raw.new_empty(0 if reduce in ("none", "skip") else (N, G, n))
    # without counters the kernel leaves these alone, but a pointer has to be of some tensor
    elapsed = interval = received
    if counters is not None:
        elapsed, interval = (
            common.per_head(each, written=True) for each in (counters.elapsed, counters.interval)
        )
    # `launch_pdl` lets `combine` be there before the kernel ahead has ended:
    # that kernel releases it at once, and `combine` waits for its end before it reads. The kernel
    # ahead is launched as usual, so what it reads is complete.
    early = common.starts_early(queries.device)
    combine[(N * G, rho + (0 if reduce == "skip" else triton.cdiv(n, ENTRIES_FINISHED)))](
        raw, lse, outputs, output, exact_out, received, elapsed, interval,
        n, parts, counters.threshold if counters else 0.0, elapsed.stride(0),
        RHO=rho, D=d, BLOCK_RHO=common.magnitude(rho), BLOCK_D=common.magnitude(d),
        BLOCK_N=ENTRIES_FINISHED, BLOCK_PARTS=common.magnitude(parts),
        # tables of codes have more parts (`mixed_precision`), which are joined in several turns
        JOINED=min(common.MOST_PARTS, common.magnitude(parts)),
        REDUCE=reduce, COUNT=counters is not None,
        EARLY=early, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    if exact is not None and exact_out is not exact:
        exact.copy_(exact_out)
    return output, raw.view(N, G, rho, 1, n) if reduce == "none" else received


@partial(common.kernel, changing=("n", "parts"))
def combine(
    raw, lse, part_output, output, exact, received, elapsed, interval,
    n, parts, threshold, s_head,
    RHO: constexpr, D: constexpr, BLOCK_RHO: constexpr, BLOCK_D: constexpr, BLOCK_N: constexpr,
    BLOCK_PARTS: constexpr, JOINED: constexpr, REDUCE: constexpr, COUNT: constexpr,
    EARLY: constexpr,
):  # fmt: skip
    """Turn raw logits into probabilities, and the parts' outputs into one.

    Reads what parts left, in float32: logits ``raw`` [heads, RHO, n]; and of the ``parts`` that
    were launched, packed, ``lse`` [heads, parts, RHO] and ``part_output`` [heads, parts, RHO, D].

    Writes ``output``, and ``exact`` in float32 unless it is None, both [heads, RHO, D]. REDUCE says
    what becomes of probabilities: with ``none`` they replace the logits in ``raw``; with ``sum``,
    ``mean`` or ``max`` over the RHO query heads of a KV head they go to ``received`` [heads, n];
    with ``skip`` there are none, and ``raw`` is empty. With COUNT, what was received updates
    ``elapsed`` and ``interval`` [heads, n] in place, whose heads lie s_head numbers apart.

    Grid: (heads, RHO + blocks of BLOCK_N entries). The first RHO programs of a head write a row of
    the output each, from JOINED parts at a time; the others finish a block of entries in all rows.
    With EARLY it starts before the parts are there, and waits.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
    head, turn = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if turn < RHO:
        column, this_row = tl.arange(0, BLOCK_D), turn + tl.arange(0, 1)  # a list of one row
        # `own_`, since a name has one shape in both branches of Triton's `if`
        own_anchor, own_inverse = joined_softmax(lse, head, this_row, parts, RHO, BLOCK_PARTS)
        joined = tl.zeros([BLOCK_D], tl.float32)
        for first in tl.static_range(0, BLOCK_PARTS, JOINED):
            part = first + tl.arange(0, JOINED)
            line = (head * parts + part) * RHO + turn
            real = (part < parts)[:, None] & (column < D)[None, :]
            pieces = tl.load(part_output + line[:, None] * D + column, mask=real, other=0.0)
            logged = tl.load(lse + line, mask=part < parts, other=float("-inf"))
            weights = tl.exp(logged[:, None] - own_anchor[None, :]) * own_inverse[None, :]
            joined += tl.sum(pieces * weights, axis=0)
        to = (head * RHO + turn) * D + column
        tl.store(output + to, joined.to(output.dtype.element_ty), mask=column < D)
        if exact is not None:
            tl.store(exact + to, joined, mask=column < D)
    elif REDUCE != "skip":
        row, entry = tl.arange(0, BLOCK_RHO), (turn - RHO) * BLOCK_N + tl.arange(0, BLOCK_N)
        there = entry < n
        inside = (row < RHO)[:, None] & there[None, :]
        at = (head * RHO + row[:, None]) * n + entry
        logits = tl.load(raw + at, mask=inside, other=float("-inf"))
        anchor, inverse = joined_softmax(lse, head, row, parts, RHO, BLOCK_PARTS)
        probability = tl.exp(logits - anchor[:, None]) * inverse[:, None]
        if REDUCE == "none":
            tl.store(raw + at, probability, mask=inside)
        else:
            reduced = tl.sum(probability, axis=0)
            if REDUCE == "max":  # which passes over NaN: that of the sum is kept
                reduced = tl.where(reduced == reduced, tl.max(probability, axis=0), reduced)
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


@common.kernel
def joined_softmax(lse, head, row, parts, RHO: constexpr, BLOCK_PARTS: constexpr):
    """Return of each of a list of rows an anchor and the inverse of its mass, over all parts.

    exp(x − anchor) · inverse is the probability of a logit x, and the weight of a part whose
    log-sum-exp is x.
    """
    part = tl.arange(0, BLOCK_PARTS)
    known = (part < parts)[:, None] & (row < RHO)[None, :]
    place = (head * parts + part[:, None]) * RHO + row[None, :]
    logged = tl.load(lse + place, mask=known, other=float("-inf"))
    best = tl.max(logged, axis=0)
    anchor = tl.where(best == float("-inf"), 0.0, best)
    mass = tl.sum(tl.exp(logged - anchor[None, :]), axis=0)
    return anchor, 1.0 / tl.where(mass == 0, 1.0, mass)
