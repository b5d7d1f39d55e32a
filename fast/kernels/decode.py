"""Attention of one new token that also hands scores their probabilities.

In Triton two launches: entries are shared out over programs, then what the parts found is combined.

Bytes, for N·G heads with ρ query heads each, n entries of d channels of e bytes: keys and values
once, 2·n·d·e; raw logits written and read again as float32, 8·ρ·n, and what is received written,
4·n. The logits are ρ/(d·e/4) of the cache: 6 % for ρ = 4, d = 128, 16 bits. Operations: 4·ρ·n·d.
"""

# pyright: reportArgumentType=false, reportPrivateImportUsage=false
# Triton makes constexpr of plain numbers; `common` has Triton, or what stands in for it.

from dataclasses import dataclass
from typing import no_type_check

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvlab.fast.engine import attention
from kvlab.fast.engine.attention import Reduction
from kvlab.fast.kernels import common
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.common import tl, triton


@dataclass(frozen=True)
class RecurrenceCounters:
    """Counters by which LazyEviction decides: attention to one token updates them, in place."""

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

    Args:
        elapsed: generated tokens since each entry's latest activation, or since before its birth.
        interval: longest time between two activations.
        active: entries that are activated now.
        counts: those of them whose time since the last activation counts as an interval.
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
    """Attend from one token to all entries.

    Args:
        queries: queries of the token; logits are q·k/√d.
        keys: keys of the entries, with any strides, channels next to each other.
        values: likewise.
        positions: -1 marks empty slots; None where there is none.
        softcap: bound into which logits are squeezed.
        reduce: how to join the query heads of a KV head; ``skip``: only the output is wanted.
        counters: counters to update; they need a reduction.

    Returns:
        The output, and the probabilities ``[N, G, rho, 1, n]`` or, reduced, ``[N, G, n]``, float32;
        with ``skip`` an empty tensor.

    Raises:
        ValueError: if there are counters without a reduction.
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


@common.tuned(
    common.blocks(4, 3, BLOCK_N=32),
    common.blocks(4, 2, BLOCK_N=64),
    common.blocks(4, 3, BLOCK_N=64),
    common.blocks(8, 3, BLOCK_N=64),
    common.blocks(4, 2, BLOCK_N=128),
    common.blocks(8, 2, BLOCK_N=128),
    common.blocks(8, 3, BLOCK_N=128),
    key=["magnitude", "RHO", "D", "PARTS", "WIDE", "SCORES"],
)
@triton.jit
@no_type_check
def attend_to_a_part(
    queries, keys, values, positions, raw, largest, total, part_output,
    n, magnitude, scale, softcap,
    q_head, q_row, k_head, k_row, v_head, v_row, p_head,
    RHO: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_RHO: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    SOFTCAP: tl.constexpr, RAGGED: tl.constexpr, WIDE: tl.constexpr, SCORES: tl.constexpr,
):  # fmt: skip
    """Attention of a head's queries to one part of its entries.

    With WIDE, products are formed in float32; without WIDE, in the stored number format. Sums are
    always float32. Writes the raw logits (with SCORES) and, of this part, the largest logit, the
    sum of exp(logit − largest) and the unnormalised output. Grid: (heads, PARTS); a program walks
    some blocks.
    """
    head, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, column = tl.arange(0, BLOCK_RHO), tl.arange(0, BLOCK_D)
    real = (row < RHO)[:, None] & (column < D)[None, :]
    q = tl.load(queries + head * q_head + row[:, None] * q_row + column, mask=real, other=0.0)
    q = q.to(tl.float32) if WIDE else q.to(keys.dtype.element_ty)
    best = tl.full([BLOCK_RHO], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_RHO], tl.float32)
    output = tl.zeros([BLOCK_RHO, BLOCK_D], tl.float32)
    rounds = tl.cdiv(tl.cdiv(n, BLOCK_N), PARTS)
    for turn in range(0, rounds):
        entry = (part * rounds + turn) * BLOCK_N + tl.arange(0, BLOCK_N)
        there = entry < n
        held = there
        if RAGGED:
            held = held & (tl.load(positions + head * p_head + entry, mask=there, other=-1) >= 0)
        block = held[:, None] & (column < D)[None, :]
        at = head * k_head + entry[:, None] * k_row + column
        k = tl.load(keys + at, mask=block, other=0.0)
        if WIDE:
            k = k.to(tl.float32)
        logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if SOFTCAP:
            logits = common.squeezed(logits, softcap)
        logits = tl.where(held[None, :], logits, float("-inf"))
        if SCORES:
            to = raw + (head * RHO + row[:, None]) * n + entry
            tl.store(to, logits, mask=(row < RHO)[:, None] & there[None, :])
        now = tl.maximum(best, tl.max(logits, axis=1))
        anchor = tl.where(now == float("-inf"), 0.0, now)
        weights = tl.exp(logits - anchor[:, None])
        shrink = tl.exp(best - anchor)
        mass = mass * shrink + tl.sum(weights, axis=1)
        at = head * v_head + entry[:, None] * v_row + column
        v = tl.load(values + at, mask=block, other=0.0)
        if WIDE:
            v = v.to(tl.float32)
        product = tl.dot(common.in_reach(weights, v.dtype), v, input_precision="ieee")
        output = output * shrink[:, None] + common.out_of_reach(product, v.dtype)
        best = now
    place = (head * PARTS + part) * RHO + row
    tl.store(largest + place, best, mask=row < RHO)
    tl.store(total + place, mass, mask=row < RHO)
    tl.store(part_output + place[:, None] * D + column, output, mask=real)


@triton.jit
def combine(
    raw, largest, total, part_output, output, received, elapsed, interval,
    n, threshold, s_head,
    RHO: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_RHO: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_PARTS: tl.constexpr, REDUCE: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Turn raw logits into probabilities, and the parts' outputs into one.

    REDUCE is ``none`` (probabilities replace the logits), ``skip``, or ``sum``, ``mean`` or ``max``
    over the query heads of a KV head. With COUNT, what was received updates the counters of
    every entry's recurrence in place. Grid: (heads, blocks of entries); the first block writes the
    output.
    """
    head, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, part = tl.arange(0, BLOCK_RHO), tl.arange(0, BLOCK_PARTS)
    known = (part < PARTS)[:, None] & (row < RHO)[None, :]
    place = (head * PARTS + part[:, None]) * RHO + row
    bests = tl.load(largest + place, mask=known, other=float("-inf"))
    masses = tl.load(total + place, mask=known, other=0.0)
    best = tl.max(bests, axis=0)
    anchor = tl.where(best == float("-inf"), 0.0, best)
    shares = tl.exp(bests - anchor[None, :])
    mass = tl.sum(masses * shares, axis=0)
    inverse = tl.where(mass == 0, 0.0, 1.0 / tl.where(mass == 0, 1.0, mass))

    if REDUCE != "skip":
        entry = block * BLOCK_N + tl.arange(0, BLOCK_N)
        there = entry < n
        inside = (row < RHO)[:, None] & there[None, :]
        at = (head * RHO + row[:, None]) * n + entry
        logits = tl.load(raw + at, mask=inside, other=float("-inf"))
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

    if block == 0:
        column = tl.arange(0, BLOCK_D)
        joined = tl.zeros([BLOCK_RHO, BLOCK_D], tl.float32)
        for number in tl.static_range(PARTS):
            line = (head * PARTS + number) * RHO + row
            share = tl.exp(tl.load(largest + line, mask=row < RHO, other=float("-inf")) - anchor)
            real = (row < RHO)[:, None] & (column < D)[None, :]
            piece = tl.load(part_output + line[:, None] * D + column, mask=real, other=0.0)
            joined += piece * (share * inverse)[:, None]
        real = (row < RHO)[:, None] & (column < D)[None, :]
        to = output + (head * RHO + row[:, None]) * D + column
        tl.store(to, joined.to(output.dtype.element_ty), mask=real)


TOGETHER = 512
"""Entries whose probabilities a program of the second kernel finishes."""


@dataclass(frozen=True)
class Parts:
    """What attention to each part of the entries leaves for `combine`."""

    raw: Float[Tensor, "heads rho n"] | Float[Tensor, "0"]
    """Logits; empty if no probabilities are asked for."""
    largest: Float[Tensor, "heads parts rho"]
    total: Float[Tensor, "heads parts rho"]
    output: Float[Tensor, "heads parts rho d"]

    @classmethod
    def of(cls, queries: Float[Tensor, "N G rho 1 d"], n: int, parts: int, scores: bool) -> "Parts":
        """Allocate what so many parts of n entries leave; with ``scores`` the logits, too."""
        N, G, rho, _, d = queries.shape
        shapes = ((N * G, rho, n) if scores else (0,), (N * G, parts, rho), (N * G, parts, rho))
        return cls(
            *(queries.new_empty(s, dtype=torch.float32) for s in (*shapes, (N * G, parts, rho, d)))
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Constants of all kernels."""
        _, parts, rho, d = self.output.shape
        return {"RHO": rho, "D": d, "PARTS": parts, "BLOCK_D": common.columns(d)}

    def combined(
        self,
        queries: Float[Tensor, "N G rho 1 d"],
        n: int,
        reduce: Reduction,
        counters: RecurrenceCounters | None = None,
    ) -> tuple[Float[Tensor, "N G rho 1 d"], Tensor]:
        """Return the output and the probabilities, as `decode_attention` does.

        Raises:
            ValueError: if the columns of the counters lie differently in memory.
        """
        N, G, rho = queries.shape[:3]
        output = torch.empty_like(queries, memory_format=torch.contiguous_format)
        reduced = reduce not in ("none", "skip")
        received = self.raw.new_empty((N * G, n)) if reduced else self.raw
        elapsed = interval = received
        if counters is not None:
            elapsed, interval = (
                common.per_head(counters.elapsed),
                common.per_head(counters.interval),
            )
            if elapsed.stride() != interval.stride():
                raise ValueError(
                    f"counters must have equal strides, got {elapsed.stride()} for elapsed and "
                    f"{interval.stride()} for interval"
                )
        combine[(N * G, 1 if reduce == "skip" else triton.cdiv(n, TOGETHER))](
            self.raw, self.largest, self.total, self.output, output, received, elapsed, interval,
            n, counters.threshold if counters else 0.0, elapsed.stride(0),
            BLOCK_RHO=common.columns(rho), BLOCK_N=TOGETHER,
            BLOCK_PARTS=common.magnitude(self.sizes["PARTS"]),
            REDUCE=reduce, COUNT=counters is not None, **self.sizes,
        )  # fmt: skip
        if reduce == "skip":
            return output, received
        return output, received.view((N, G, n) if reduced else (N, G, rho, 1, n))


def nothing_read(
    queries: Float[Tensor, "N G rho 1 d"], n: int, reduce: Reduction
) -> tuple[Float[Tensor, "N G rho 1 d"], Tensor]:
    """Return zeros, in the form of `Parts.combined`: no entry is there."""
    weights = queries.new_zeros((*queries.shape[:4], n), dtype=torch.float32)
    return torch.zeros_like(queries), handed_out(weights, reduce)


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
    N, G, rho, m, d = queries.shape
    n = keys.shape[2]
    if m != 1:
        raise ValueError(f"queries of {m} tokens must be of 1 token")
    if attention.compute_dtype(keys.dtype) != torch.float32:
        raise ValueError(f"keys of {keys.dtype}: Triton kernels compute in float32")
    if not n:
        return nothing_read(queries, 0, reduce)
    heads, scores = N * G, reduce != "skip"
    flat = queries.reshape(heads, rho, d).contiguous()
    keys, values = common.per_head(keys), common.per_head(values)
    places = None if positions is None else common.per_head(positions)
    parts = Parts.of(
        queries, n, common.split(n, common.ENTRIES_OF_A_PART, heads, queries.device), scores
    )
    attend_to_a_part[(heads, parts.sizes["PARTS"])](
        flat, keys, values, places, parts.raw, parts.largest, parts.total, parts.output,
        n, common.magnitude(n), d**-0.5, softcap or 0.0,
        flat.stride(0), flat.stride(1),
        keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
        0 if places is None else places.stride(0),
        BLOCK_RHO=common.columns(rho), SOFTCAP=softcap is not None, RAGGED=places is not None,
        WIDE=common.multiplied_in_float32(keys), SCORES=scores, **parts.sizes,
    )  # fmt: skip
    return parts.combined(queries, n, reduce, counters)
