"""Which slots are kept. Triton finds the threshold bit by bit, among numbers held in registers.

Bytes, for N·G heads of n entries: scores, marks and positions, 9·n, once from memory and once more
from the processor's cache; those behind the first `MOST_HELD` are read for every bit.
"""

from collections.abc import Callable, Sequence

import torch

from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.common import kernel, magnitude, on_device_of, per_head, tl, to_device
from kvlab.fast.kernels.notation import Bool, Float, Int, Marks, Positions, Scores, Slots, Tensor

BEYOND = torch.iinfo(torch.int32).max
"""A position that no entry has."""


def rank(scores: Float[Tensor, "*rows n"]) -> Int[Tensor, "*rows n"]:
    """Rank entries from the first to evict, 0, to the last; of equal scores the later is kept."""
    order = scores.argsort(dim=-1, stable=True)
    places = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def in_ascending_position(
    x: Tensor, positions: Positions, ordered: bool
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return ``x`` in cache order, and the function that puts such an array back into slots."""
    if ordered:
        return x, lambda y: y
    order = positions.argsort(dim=-1)
    return x.gather(-1, order), lambda y: torch.empty_like(y).scatter_(-1, order, y)


def keep_slots(
    scores: Scores,
    protected: Marks | None,
    positions: Positions,
    kept: Sequence[int],
    ordered: bool,
) -> Slots:
    """Return the slots to keep in ascending position: protected ones and the best of the rest.

    Entries with higher scores are kept, of equal scores the later position; there is one row of
    scores for all heads if they decide together. Positions of -1 mark empty slots. ``kept`` is how
    many to keep, for each sequence, at most the entries; if more are protected, the later of those
    are kept. ``ordered`` slots are in ascending position, the empty ones first.

    Returns:
        As many slots as the sequence that keeps most; a sequence that keeps fewer has its slots at
        the end, after arbitrary ones. PyTorch computes this unequal case.
    """
    if ordered and min(kept) == max(kept) and uses_triton(scores):
        N, G, n = positions.shape
        flat, width, held = per_head(positions), kept[0], min(MOST_HELD, max(1024, magnitude(n)))
        marks = flat if protected is None else protected.contiguous().view(torch.uint8)
        keep = torch.empty((N, G, width), dtype=torch.int64, device=positions.device)
        with on_device_of(scores):
            keep_sets[(N * G,)](
                scores.to(torch.float32).contiguous(), marks, flat, keep,
                n, width, flat.stride(0), G,
                SCORE_HEADS=scores.shape[1], HELD=held, BLOCK_N=min(8192, held),
                PROTECTS=protected is not None, num_warps=16,
            )  # fmt: skip
        return keep
    width = max(kept)
    last = eviction_order(scores, protected, positions, ordered)[
        :, :, positions.shape[-1] - width :
    ]
    place = positions.gather(-1, last)
    if min(kept) < width:
        place = place.masked_fill(~last_in_use(width, kept, positions.device), -1)
    return last.gather(-1, place.argsort(dim=-1, stable=True))


def eviction_order(
    scores: Scores, protected: Marks | None, positions: Positions, ordered: bool
) -> Int[Tensor, "N G n"]:
    """Return slots from the first to evict: empty ones, candidates by score, protected entries.

    Of equal scores, and of protected entries, the earlier position comes first.
    """
    standing, scores = (positions >= 0).to(torch.int8), scores.expand_as(positions)
    if protected is not None:
        standing = standing + (protected & (positions >= 0))
        scores = scores.masked_fill(protected, 0.0)
    slots = torch.arange(positions.shape[-1], device=positions.device).expand_as(positions)
    slots, _ = in_ascending_position(slots, positions, ordered)
    for key in (scores, standing):
        slots = slots.gather(-1, key.gather(-1, slots).argsort(dim=-1, stable=True))
    return slots


def last_in_use(
    width: int, counts: Sequence[int], device: torch.device
) -> Bool[Tensor, "#N 1 width"]:
    """Mark the last ``counts`` of ``width`` places, for each sequence."""
    places = torch.arange(width, device=device)
    if min(counts) == max(counts):
        return (places >= width - counts[0])[None, None]
    first = to_device([width - count for count in counts], device)
    return (places >= first[:, None])[:, None]


# --- in Triton ------------------------------------------------------------------------------------

MOST_HELD = 32768
"""Entries of a head that its program holds in registers, 64 a thread: half of all there are."""


@kernel
def read_ranks(
    scores, protected, positions, first, n, BLOCK_N: tl.constexpr, PROTECTS: tl.constexpr,
):  # fmt: skip
    """Return int32 numbers of a head in the order of keeping: empty, scores, NaN, protected."""
    slot = first + tl.arange(0, BLOCK_N)
    there = slot < n
    present = tl.load(positions + slot, mask=there, other=-1) >= 0
    read = tl.load(scores + slot, mask=there, other=0.0)
    bits = (read + 0.0).to(tl.int32, bitcast=True)  # both zeros are equal
    ranks = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    ranks = tl.where(read != read, 0x7FFFFFFE, ranks)
    if PROTECTS:
        marked = tl.load(protected + slot, mask=there, other=0) != 0
        ranks = tl.where(marked, 0x7FFFFFFF, ranks)
    return tl.where(present, ranks, -0x80000000)


@kernel
def keep_sets(
    scores, protected, positions, keep,
    n, width, p_head, heads_of_one,
    SCORE_HEADS: tl.constexpr, HELD: tl.constexpr, BLOCK_N: tl.constexpr, PROTECTS: tl.constexpr,
):  # fmt: skip
    """Write the ``width`` slots of each head that are kept, ascending: those of highest rank.

    Of equal ranks the later slot is kept. The threshold is the largest number that enough ranks
    reach, or any that just enough reach: from the highest bit down, each is set if it stays so.
    Grid: (heads,).
    """
    head = tl.program_id(0).to(tl.int64)
    scores += ((head // heads_of_one) if SCORE_HEADS == 1 else head) * n
    positions, protected = positions + head * p_head, protected + head * n
    held = read_ranks(scores, protected, positions, 0, n, HELD, PROTECTS)
    low, bit = tl.full([], -0x80000000, tl.int32), tl.full([], 31, tl.int32)
    reach = tl.full([], 0, tl.int32) + n
    while (bit >= 0) & (reach != width):
        tried = low ^ (tl.full([], 1, tl.int32) << bit)
        found = tl.sum((held >= tried).to(tl.int32), axis=0)
        for first in range(HELD, n, BLOCK_N):
            ranks = read_ranks(scores, protected, positions, first, n, BLOCK_N, PROTECTS)
            found += tl.sum((ranks >= tried).to(tl.int32), axis=0)
        low = tl.where(found >= width, tried, low)
        reach = tl.where(found >= width, found, reach)
        bit -= 1
    passed_over = reach - width
    above = tl.full([], 0, tl.int32)
    equal = tl.full([], 0, tl.int32)
    for first in range(0, n, BLOCK_N):
        ranks = read_ranks(scores, protected, positions, first, n, BLOCK_N, PROTECTS)
        pair = tl.where(ranks > low, 65536, tl.where(ranks == low, 1, 0))  # two counts in a sum
        until = tl.cumsum(pair, axis=0)
        ties = equal + (until & 65535)
        stay = (ranks > low) | ((ranks == low) & (ties > passed_over))
        to = above + (until >> 16) + tl.maximum(ties - passed_over, 0) - 1
        slot = first + tl.arange(0, BLOCK_N)
        tl.store(keep + head * width + to, slot.to(tl.int64), mask=stay & (to < width))
        whole = tl.sum(pair, axis=0)
        above += whole >> 16
        equal += whole & 65535
