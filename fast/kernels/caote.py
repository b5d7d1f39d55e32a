"""CAOTE's score of every entry: how the outputs change if it alone is evicted (CAOTE Eq. 8-9, 14).

Triton makes one pass over the values; if their weighted sum is not given, another one before.

Bytes, for N·G heads with k rows of retention, n entries of d channels of e bytes: values once,
n·d·e, retention twice, 8·k·n, scores written, 4·n. Without ``output``, and for the mean of
FastCAOTE, values and weights are read once more before, n·d·e + 4·k·n. Operations: 3·k·n·d, and
2·k·n·d for the weighted sum.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kvlab.fast.kernels import common
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.common import tl, triton

EXACT = "donot_use_mm_for_euclid_dist"
"""How `torch.cdist` keeps the digits of small distances."""


def eviction_errors(
    h: Float[Tensor, "N G k n"],
    values: Float[Tensor, "N G n d"],
    fast: bool = False,
    output: Float[Tensor, "N G k d"] | None = None,
) -> Float[Tensor, "N G n"]:
    """Return α/(1 − α)·‖o − v‖ of every entry, L2 over the rows of its head.

    ``h`` is retention, each row adding up to 1, with 0 for empty slots. ``fast`` is FastCAOTE: the
    mean of all values stands in for the output, and no slot may be empty. ``output`` is Σ h·v where
    the caller has it, as after attention; an output of 16 bits is off by their rounding, and so are
    distances to it. PyTorch computes it anew. Errors are float32; an entry that has all the mass
    gets the largest number there is.
    """
    if uses_triton(h):
        return _errors_in_triton(h, values, fast, output)
    values = values.to(h.dtype)
    per_row = fast_eviction_error(h, values, None) if fast else eviction_error(h, values)
    return joined_by_norm(per_row)


def joined_by_norm(per_row: Float[Tensor, "N G k n"]) -> Float[Tensor, "N G n"]:
    """Return the L2 norm over the rows; torch's vector_norm is 40 times slower along few rows."""
    return per_row[:, :, 0] if per_row.shape[2] == 1 else per_row.square().sum(dim=2).sqrt()


def remaining_mass(h: Float[Tensor, "N G k n"]) -> Float[Tensor, "N G k n"]:
    """Return Σh − h_j: of equal entries the same, and without cancellation."""
    total = h.sum(dim=-1, keepdim=True)
    dominant = h > total / 2
    others = h.masked_fill(dominant, 0.0).sum(dim=-1, keepdim=True)
    return torch.where(dominant, others, total - h)


def eviction_error(
    h: Float[Tensor, "N G k n"], values: Float[Tensor, "N G n d"], norm: float = 2
) -> Float[Tensor, "N G k n"]:
    """c_j = h_j/(1 − h_j)·‖Σ h·v − v_j‖: the change of the output when entry j alone is evicted.

    The error of an entry above one half, at most one, is computed from the output of the others,
    where the printed formula loses its digits as h_j → 1; with all the mass, its error is the
    largest number there is.
    """
    largest, where = h.max(dim=-1, keepdim=True)
    others = h.scatter(-1, where, 0.0)
    mass = others.sum(dim=-1, keepdim=True)
    others_output = torch.matmul(others, values)
    heaviest = values.gather(2, where.expand(*where.shape[:3], values.shape[3]))
    output = torch.addcmul(others_output, largest, heaviest)
    error = h * torch.cdist(output, values, norm, EXACT) / (1 - h)
    apart = torch.linalg.vector_norm(heaviest - others_output / mass, norm, dim=-1, keepdim=True)
    exact = torch.where(mass > 0, largest * apart, torch.finfo(h.dtype).max)
    return torch.where(h > 0.5, exact, error)


def fast_eviction_error(
    h: Float[Tensor, "N G k n"],
    values: Float[Tensor, "N G n d"],
    present: Bool[Tensor, "N G n"] | None,
    norm: float = 2,
) -> Float[Tensor, "N G k n"]:
    """FastCAOTE: the unweighted mean of all present values stands in for the output."""
    if present is None:
        mean = values.mean(dim=2, keepdim=True)
    else:
        entries = present.sum(dim=-1)[..., None, None].clamp(min=1)
        mean = (values * present[..., None]).sum(dim=2, keepdim=True) / entries
    rest = remaining_mass(h).clamp(min=torch.finfo(torch.float64).eps)
    return h / rest * torch.cdist(mean, values, norm, EXACT)


# --- in Triton ------------------------------------------------------------------------------------

SAFE_MASS = 1e-3
"""Mass of all entries but the heaviest. Below this mass their output is summed again, because
subtracting the heaviest from the whole would lose three of float32's seven digits."""
SAFE_MASS_OF_ROUNDED = 0.5
"""The same for an output that was rounded to 16 bits: subtraction may double its error."""


@common.tuned(
    common.blocks(4, 3, BLOCK_N=32),
    common.blocks(4, 3, BLOCK_N=64),
    common.blocks(8, 3, BLOCK_N=128),
    key=["magnitude", "ROWS", "D", "PARTS"],
)
@common.kernel
def weighted_sums(
    weights, values, sums,
    n, magnitude,
    ROWS: tl.constexpr, D: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Sum of values, weighted by every row of a head, over one part of the entries.

    Sums are of float32, as are products. Grid: (heads, PARTS).
    """
    head, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, column = tl.arange(0, BLOCK_ROWS), tl.arange(0, BLOCK_D)
    total = tl.zeros([BLOCK_ROWS, BLOCK_D], tl.float32)
    rounds = tl.cdiv(tl.cdiv(n, BLOCK_N), PARTS)
    for turn in range(0, rounds):
        entry = (part * rounds + turn) * BLOCK_N + tl.arange(0, BLOCK_N)
        there = entry < n
        at = head * weights.head + row[:, None] * weights.row + entry[None, :]
        w = tl.load(weights.data + at, mask=(row < ROWS)[:, None] & there[None, :], other=0.0)
        v = common.read_vectors(values, head, entry, there, D, BLOCK_D, True)
        total += tl.dot(w, v, input_precision="ieee")
    to = sums + ((head * PARTS + part) * ROWS + row[:, None]) * D + column
    tl.store(to, total, mask=(row < ROWS)[:, None] & (column < D)[None, :])


@common.kernel
def find_heaviest(
    retention, values, output, others, heaviest, mass,
    n, safe_mass,
    ROWS: tl.constexpr, D: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Find a row's heaviest entry, the mass of all others, and their part of the output.

    Σ_others h·v is the output less the heaviest's share, or summed anew where hardly any mass is
    left. Grid: (heads, ROWS).
    """
    head, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line = head * ROWS + row
    best = tl.full([], 0.0, tl.float32)
    where = tl.full([], 0, tl.int32)
    left = tl.full([], 0.0, tl.float32)
    for block in range(0, tl.cdiv(n, BLOCK_H)):
        entry = block * BLOCK_H + tl.arange(0, BLOCK_H)
        h = tl.load(retention + line * n + entry, mask=entry < n, other=0.0)
        largest = tl.max(h, axis=0)
        place = (block * BLOCK_H + tl.argmax(h, axis=0)).to(tl.int32)
        left += tl.sum(tl.where(entry == place, 0.0, h), axis=0) + tl.minimum(largest, best)
        where = tl.where(largest > best, place, where)
        best = tl.maximum(best, largest)
    column = tl.arange(0, BLOCK_D)
    real = column < D
    at = head * values.head + where.to(tl.int64) * values.row + column
    own = tl.load(values.data + at, mask=real, other=0.0)
    whole = tl.load(output + line * D + column, mask=real, other=0.0)
    rest = whole - best * own.to(tl.float32)
    if left < safe_mass:
        rest = tl.zeros([BLOCK_D], tl.float32)
        for block in range(0, tl.cdiv(n, BLOCK_N)):
            entry = block * BLOCK_N + tl.arange(0, BLOCK_N)
            h = tl.load(retention + line * n + entry, mask=entry < n, other=0.0)
            h = tl.where(entry == where, 0.0, h)
            v = common.read_vectors(values, head, entry, entry < n, D, BLOCK_D, True)
            rest += tl.sum(h[:, None] * v, axis=0)
    tl.store(others + line * D + column, rest, mask=real)
    tl.store(heaviest + line, where)
    tl.store(mass + line, left)


@common.tuned(
    common.blocks(4, 3, BLOCK_N=64),
    common.blocks(4, 3, BLOCK_N=32),
    common.blocks(8, 3, BLOCK_N=64),
    common.blocks(8, 3, BLOCK_N=128),
    key=["magnitude", "ROWS", "D", "FAST"],
)
@common.kernel
def errors_of_entries(
    retention, values, points, others, heaviest, mass, errors,
    n, magnitude, most,
    ROWS: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """Distance of every value to every row's output, weighted: values are read once.

    ``points`` holds the outputs, or with FAST one mean of values for all rows. Grid: (heads, blocks
    of entries).
    """
    head, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    entry, column = block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    there, real = entry < n, column < D
    v = common.read_vectors(values, head, entry, there, D, BLOCK_D, True)
    total = tl.zeros([BLOCK_N], tl.float32)
    for row in tl.static_range(ROWS):
        line = head * ROWS + row
        h = tl.load(retention + line * n + entry, mask=there, other=0.0)
        left, first = tl.load(mass + line), tl.load(heaviest + line)
        point_line = head if FAST else line
        point = tl.load(points + point_line * D + column, mask=real, other=0.0)
        distance = tl.sqrt(tl.sum((v - point[None, :]) * (v - point[None, :]), axis=1))
        dominant = (entry == first) & (h > 0.5)  # below, equal entries must get equal errors
        if FAST:
            rest = tl.maximum(tl.where(dominant, left, 1.0 - h), 2.220446049250313e-16)
            error = h / rest * distance
        else:
            other = tl.load(others + line * D + column, mask=real, other=0.0)
            other = other / tl.where(left > 0, left, 1.0)
            apart = tl.sqrt(tl.sum((v - other[None, :]) * (v - other[None, :]), axis=1))
            exact = tl.where(left > 0, h * apart, most)
            error = h / tl.where(dominant, 1.0, 1.0 - h) * distance
            error = tl.where(dominant, exact, error)
        if ROWS == 1:
            total = error
        else:
            total += error * error
    if ROWS > 1:
        total = tl.sqrt(total)
    tl.store(errors + head * n + entry, total, mask=there)


@common.on_its_device
def _errors_in_triton(h: Tensor, values: Tensor, fast: bool, output: Tensor | None) -> Tensor:
    N, G, rows, n = h.shape
    d, heads = values.shape[3], N * G
    h = h.to(torch.float32).contiguous()
    vectors = common.rows_of(common.per_head(values))
    if fast:
        safe_mass = 0.0
        points = _sums_of_values(h.new_full((1, 1, n), 1 / n).expand(heads, 1, n), vectors)
        output = h.new_zeros(heads, rows, d)
    else:
        points = _sums_of_values(h.flatten(0, 1), vectors) if output is None else output
        safe_mass = SAFE_MASS if points.dtype.itemsize >= 4 else SAFE_MASS_OF_ROUNDED
        output = points = points.to(torch.float32).contiguous()
    others, mass, errors = (
        h.new_empty(heads, rows, d),
        h.new_empty(heads, rows),
        h.new_empty(N, G, n),
    )
    heaviest = h.new_empty((heads, rows), dtype=torch.int32)
    shape = {"ROWS": rows, "D": d, "BLOCK_D": common.magnitude(d)}
    find_heaviest[(heads, rows)](
        h, vectors, output, others, heaviest, mass,
        n, safe_mass,
        BLOCK_H=min(4096, common.magnitude(n)), BLOCK_N=common.ENTRIES_OF_A_PART, **shape,
    )  # fmt: skip
    errors_of_entries[lambda sizes: (heads, triton.cdiv(n, sizes["BLOCK_N"]))](
        h, vectors, points, others, heaviest, mass, errors,
        n, common.magnitude(n), torch.finfo(torch.float32).max,
        FAST=fast, **shape,
    )  # fmt: skip
    return errors


def _sums_of_values(weights: Tensor, values: common.Rows) -> Tensor:
    """Return Σ w·v for every row ``[heads, rows, d]``, in float32, without a copy of the values."""
    heads, rows, n = weights.shape
    d = values.data.shape[2]
    parts = common.split(n, common.ENTRIES_OF_A_PART, heads, weights.device)
    sums = weights.new_empty(heads, parts, rows, d)
    weighted_sums[(heads, parts)](
        common.rows_of(weights), values, sums,
        n, common.magnitude(n),
        ROWS=rows, D=d, PARTS=parts, BLOCK_ROWS=common.columns(rows), BLOCK_D=common.columns(d),
    )  # fmt: skip
    return sums.sum(dim=1)
