"""Which slots are kept. Triton finds the threshold by radix selection, eight bits at a time.

Bytes, for N·G heads of n entries: scores, marks and positions, 9·n, once from memory; radix
selection reads them five times more from the processor's cache.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.common import columns, kernel, on_its_device, per_head, tl, to_device
from kvlab.fast.kernels.notation import Marks, Positions, Scores

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


def first_to_go(
    scores: Scores, protected: Marks | None, positions: Positions
) -> tuple[Int[Tensor, "N _ 1"], Float[Tensor, "N _ 1"]]:
    """Return the slot of each head's lowest score, of equal ones the earliest, and that score.

    That score must be below infinity. ``protected`` None: every entry may be evicted.
    """
    open_scores = scores if protected is None else scores.masked_fill(protected, torch.inf)
    lowest = open_scores.amin(dim=-1, keepdim=True)
    earliest = positions.masked_fill(open_scores != lowest, BEYOND)
    return earliest.argmin(dim=-1, keepdim=True), lowest


def keep_slots(
    scores: Scores,
    protected: Marks | None,
    positions: Positions,
    kept: Sequence[int],
    ordered: bool,
) -> Int[Tensor, "N G kept"]:
    """Return the slots to keep in ascending position: protected ones and the best of the rest.

    Entries with higher scores are kept, of equal scores the later position; there is one row of
    scores for all heads if they decide together. Positions of -1 mark empty slots. ``kept`` is how
    many to keep, for each sequence: at least the protected ones, at most the entries. ``ordered``
    slots are in ascending position, the empty ones first.

    Returns:
        As many slots as the sequence that keeps most; a sequence that keeps fewer has its slots at
        the end, after arbitrary ones. PyTorch computes this unequal case.
    """
    if ordered and min(kept) == max(kept) and uses_triton(scores):
        return _keep_in_triton(scores, protected, positions, kept[0])
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

    Of equal scores the earlier position comes first.
    """
    standing = (positions >= 0).to(torch.int8)
    if protected is not None:
        standing = standing + (protected & (positions >= 0))
    slots = torch.arange(positions.shape[-1], device=positions.device).expand_as(positions)
    slots, _ = in_ascending_position(slots, positions, ordered)
    for key in (scores.expand_as(positions), standing):
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


@kernel
def ascending(scores):
    """Map float32 to 32 bits of int64 in the same order; both zeros are equal, NaN is largest."""
    bits = (scores + 0.0).to(tl.int32, bitcast=True)
    keys = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return tl.where(scores != scores, 0x7FFFFFFF, keys).to(tl.int64) + 2147483648


@kernel
def read_block(
    scores, protected, positions, score_row, place_row, protected_row, block, n,
    BLOCK_N: tl.constexpr, PROTECTS: tl.constexpr,
):  # fmt: skip
    """Return a block's slots, sortable scores, and marks of candidates and of protected slots."""
    slot = block * BLOCK_N + tl.arange(0, BLOCK_N)
    there = slot < n
    present = tl.load(positions + place_row + slot, mask=there, other=-1) >= 0
    keys = ascending(tl.load(scores + score_row + slot, mask=there, other=0.0))
    marked = present & False
    if PROTECTS:
        marked = present & (tl.load(protected + protected_row + slot, mask=there, other=0) != 0)
    return slot, keys, present & (marked == 0), marked


@kernel
def keep_sets(
    scores, protected, positions, keep,
    n, width, s_head, p_head, heads_of_one,
    SCORE_HEADS: tl.constexpr, BLOCK_N: tl.constexpr, PROTECTS: tl.constexpr,
):  # fmt: skip
    """Write the ``width`` slots of each head that are kept, ascending.

    These are the protected slots and the best candidates; of equal scores the later slot is kept.
    The threshold is the largest number that enough candidates reach: four passes count the
    candidates that share its upper bits, by the next eight. Grid: (heads,).
    """
    head = tl.program_id(0).to(tl.int64)
    score_row = ((head // heads_of_one) if SCORE_HEADS == 1 else head) * s_head
    place_row, protected_row = head * p_head, head * n
    blocks = tl.cdiv(n, BLOCK_N)
    secure = tl.full([], 0, tl.int32)
    for block in range(0, blocks):
        _slot, _keys, _candidate, marked = read_block(
            scores, protected, positions, score_row, place_row, protected_row, block, n,
            BLOCK_N, PROTECTS,
        )  # fmt: skip
        secure += tl.sum(marked.to(tl.int32), axis=0)
    digits = tl.arange(0, 512)
    wanted = width - secure
    low = tl.full([], 0, tl.int64)
    equal = tl.full([], 0, tl.int32)
    for turn in tl.static_range(4):
        counts = tl.zeros([512], tl.int32)
        for block in range(0, blocks):
            _slot, keys, candidate, _marked = read_block(
                scores, protected, positions, score_row, place_row, protected_row, block, n,
                BLOCK_N, PROTECTS,
            )  # fmt: skip
            upper = keys >> (24 - 8 * turn)
            digit = tl.where(candidate & ((upper >> 8) == low), upper & 255, 256).to(tl.int32)
            counts += tl.histogram(digit, 512)
        counts = tl.where(digits < 256, counts, 0)
        reach = tl.cumsum(counts, axis=0, reverse=True)
        found = tl.max(tl.where((digits < 256) & (reach >= wanted), digits, 0), axis=0)
        equal = tl.sum(tl.where(digits == found, counts, 0), axis=0)
        wanted -= tl.sum(tl.where(digits > found, counts, 0), axis=0)
        low = low * 256 + found
    passed_over = equal - wanted
    place = tl.full([], 0, tl.int32)
    seen_equal = tl.full([], 0, tl.int32)
    for block in range(0, blocks):
        slot, keys, candidate, marked = read_block(
            scores, protected, positions, score_row, place_row, protected_row, block, n,
            BLOCK_N, PROTECTS,
        )  # fmt: skip
        tie = (candidate & (keys == low)).to(tl.int32)
        number = seen_equal + tl.cumsum(tie, axis=0)
        stay = marked | (candidate & (keys > low)) | ((tie != 0) & (number > passed_over))
        ones = stay.to(tl.int32)
        to = place + tl.cumsum(ones, axis=0) - 1
        tl.store(keep + head * width + to, slot.to(tl.int64), mask=stay & (to < width))
        place += tl.sum(ones, axis=0)
        seen_equal += tl.sum(tie, axis=0)


@on_its_device
def _keep_in_triton(
    scores: Tensor, protected: Tensor | None, positions: Tensor, width: int
) -> Tensor:
    N, G, n = positions.shape
    scores = scores.to(torch.float32).contiguous()
    flat = per_head(positions)
    marks = flat if protected is None else protected.contiguous().view(torch.uint8)
    keep = torch.empty((N, G, width), dtype=torch.int64, device=positions.device)
    keep_sets[(N * G,)](
        scores, marks, flat, keep,
        n, width, n, flat.stride(0), G,
        SCORE_HEADS=scores.shape[1], BLOCK_N=min(1024, columns(n)), PROTECTS=protected is not None,
    )  # fmt: skip
    return keep
