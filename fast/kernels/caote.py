"""CAOTE's score of every entry: how the outputs change if it alone is evicted (CAOTE Eq. 8-9, 14).

A head has one row of weights h, which add up to 1, or one per query head. They are attention, or
what a method has in its place, normalised. With o = Σ h·v of a row,

    error_j = h_j / (1 − h_j) · ‖o − v_j‖            over several rows: √(Σ error²)

The factor h_j / (1 − h_j) are the *odds* of the entry. As h_j nears 1 this loses its digits. So a
*dominant* entry, above one half, at most one in a row, is compared with the output of all others:
error_j = h_j · ‖Σ_{i≠j} h_i·v_i / (1 − h_j) − v_j‖.

`eviction_errors` is what others call: it chooses between Triton and PyTorch, and joins the rows.
`errors_per_row` and `fast_errors_per_row` are the PyTorch code, before rows are joined.

In Triton there are three kernels; a *part* is a share of a head's entries:

| kernel | a program has | writes |
|---|---|---|
| `sums_of_others` | a part | Σ h·v (FAST: Σ v of all), Σ h but for the dominant entry, its place |
| `join_parts` | a row | from all parts: o, and the error of the dominant entry |
| `errors_of_entries` | a part | the errors of all entries; reads that of the dominant one |

They are launched in this order if o is not known, and for FastCAOTE (FAST), whose o is the mean of
all values. After attention o is given in float32, and the third alone reads all values. It is right
up to weights of 0.999 then, and a rare entry above has `add_heavy_errors`.

Bytes, for N·G heads with k rows of h, n entries of d channels of e bytes: values once, n·d·e, h
twice, 8·k·n, scores written, 4·n. Without ``output``, and for the mean of FastCAOTE, values and h
are read once more before, n·d·e + 4·k·n. Operations: 3·k·n·d, and 2·k·n·d for the weighted sum.
"""

import torch

from kvlab.fast.kernels import common
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.common import constexpr, tl, triton
from kvlab.fast.kernels.notation import Float, Marks, PerEntry, PerRow, Tensor, Vectors

EXACT = "donot_use_mm_for_euclid_dist"
"""How `torch.cdist` keeps the digits of small distances."""

FLOAT32_IS_WRONG_ON_CUDA = True
"""Whether values of float32 on CUDA take PyTorch, whatever `choice` says: Triton 3.6 summed them
wrongly on an H200. Which of the kernels did was not noted: commit e3a0191a, which rewrote all,
found this, and what `BYTES_OF_A_LANE` says. To look again, say False here, and on a GPU run
``KVLAB_TUNE=0 pytest tests/kernels/test_caote.py tests/kernels/test_edges.py``, which have values
of float32. Until then these values, and WIDE, reach the kernels in the interpreter alone."""


def eviction_errors(
    h: PerRow, values: Vectors, fast: bool = False, output: Float[Tensor, "N G k d"] | None = None
) -> PerEntry:
    """Return h/(1 − h)·‖o − v‖ of every entry, L2 over the rows of its head.

    Each row of ``h`` adds up to 1, and has 0 for empty slots. ``fast`` is FastCAOTE: the mean of
    all values stands in for the output, and no slot may be empty. ``output`` is Σ h·v where
    the caller has it, as after attention; one of 16 bits, whose rounding is as large as some
    distances to it, is computed anew, and so is any in PyTorch. Triton returns float32, and is
    right for distances from 1e-18 to 1e18, because it squares them in float32; PyTorch returns the
    format of ``h``. An entry that has all the mass in a row, or whose error is too large, gets the
    largest number there is.
    """
    summed_wrongly = FLOAT32_IS_WRONG_ON_CUDA and values.is_cuda and values.itemsize > 2
    if uses_triton(h) and not summed_wrongly:
        with common.on_device_of(h):
            return _errors_in_triton(h, values, fast, output)
    values = values.to(h.dtype)
    per_row = fast_errors_per_row(h, values, None) if fast else errors_per_row(h, values)
    return joined_by_norm(per_row)


def joined_by_norm(per_row: PerRow) -> PerEntry:
    """Return the L2 norm over the rows; torch's vector_norm is 40 times slower along few rows.

    Squares are of float64: float32 has none of errors below 1e-22 and above 1e19.
    """
    most = torch.finfo(per_row.dtype).max
    if per_row.shape[2] == 1:
        return per_row[:, :, 0].clamp(max=most)
    norm = per_row.double().square().sum(dim=2).sqrt()
    return norm.clamp(max=most).to(per_row.dtype)


def remaining_mass(h: PerRow) -> PerRow:
    """Return Σh − h_j: equal entries get equal masses, without cancellation."""
    total = h.sum(dim=-1, keepdim=True)
    dominant = h > total / 2
    others = h.masked_fill(dominant, 0.0).sum(dim=-1, keepdim=True)
    return torch.where(dominant, others, total - h)


def errors_per_row(h: PerRow, values: Vectors, norm: float = 2) -> PerRow:
    """c_j = h_j/(1 − h_j)·‖Σ h·v − v_j‖: the change of a row's output when j alone is evicted.

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


def fast_errors_per_row(
    h: PerRow, values: Vectors, present: Marks | None, norm: float = 2
) -> PerRow:
    """FastCAOTE: the unweighted mean of all present values stands in for the output.

    With all the mass, an entry's error is the largest number there is.
    """
    if present is None:
        mean = values.mean(dim=2, keepdim=True)
    else:
        entries = present.sum(dim=-1)[..., None, None].clamp(min=1)
        mean = (values * present[..., None]).sum(dim=2, keepdim=True) / entries
    rest = remaining_mass(h)
    error = h / rest * torch.cdist(mean, values, norm, EXACT)
    most = torch.finfo(h.dtype).max
    return torch.where(rest > 0, error, most).clamp_(max=most)


# --- in Triton ------------------------------------------------------------------------------------

DOMINANT = constexpr(0.5)
"""Weight above which an entry's error is computed from the output of all others. At least one
half, because a row has one place for such an entry; `remaining_mass` and `errors_per_row` have it,
too."""
DOMINANT_IN_FLOAT32 = 0.999
"""The same for an output that is given in float32: its distance loses three of seven digits here.
One program alone then sums the others, which is slow: 8 KiB of values at a time."""
BYTES_OF_A_LANE = 16
"""What a lane loads at once, and adds up: Triton 3.6 loses channels of lanes that lie apart."""
WALKED = constexpr(32)
"""Entries that a program sums together where it sums all. It divides each BLOCK_N that is tried for
`errors_of_entries`, so that `add_heavy_errors` begins and ends where blocks of these do."""
PROGRAMS = 1024
"""Programs that compute errors, at most; each takes several blocks."""


@common.kernel
def in_pieces(weights, piece, TYPE: constexpr):
    """Return weights as numbers of 16 bits, and by what to multiply each row's products.

    A tensor core multiplies 16 bits exactly, so a weight of float32 is a sum of three such
    pieces, each in a row of its own. Pieces 0 to 2 add up to float32's 24 bits, 3 is 0. Beside
    a dominant entry all weights may lie below float16's numbers, so each row's largest is moved
    to their upper end.
    """
    down = tl.full([weights.shape[0]], 1.0, tl.float32)
    if TYPE.is_fp16():
        up, down = common.into_reach(tl.max(weights, axis=1))
        weights = weights * up[:, None]
    high = weights.to(TYPE)
    rest = weights - high.to(tl.float32)
    middle = rest.to(TYPE)
    low = (rest - middle.to(tl.float32)).to(TYPE)
    found = tl.where(piece == 0, high, tl.where(piece == 1, middle, low))
    return tl.where(piece == 3, 0.0, found).to(TYPE), down


@common.tuned(
    "BLOCK_N",  # warps, stages, BLOCK_N:
    ((4, 3, 64), (4, 2, 64), (4, 4, 32), (8, 3, 64), (8, 3, 128)),
    key=["kind", "ROWS", "D", "WIDE"],
)
@common.kernel
def sums_of_others(
    all_h, values, sums, masses, places,
    n, kind, parts,
    ROWS: constexpr, D: constexpr, PIECES: constexpr, BLOCK_ROWS: constexpr, BLOCK_N: constexpr,
    BLOCK_D: constexpr, FAST: constexpr, WIDE: constexpr,
):  # fmt: skip
    """Sum values, weighted by every row of a head, over one part of the entries.

    A row's dominant entry is left out, and ``places`` says where it is; ``masses`` are those of the
    others. With FAST all values are summed, unweighted, and the rest is as without. Products are
    exact, of numbers of 16 bits, in PIECES of a weight, or with WIDE of float32; sums are of
    float32. ``kind`` is for the tuner alone, which reads arguments by name. Grid: (heads, parts).
    """
    head, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    # The product's BLOCK_ROWS lines are rows × pieces: the PIECES of row 0, then those of row 1, …
    line = tl.arange(0, BLOCK_ROWS)
    row, piece = line // PIECES, line % PIECES
    real = (row < ROWS)[:, None]
    total = tl.zeros([BLOCK_ROWS, BLOCK_D], tl.float32)
    mass = tl.zeros([BLOCK_ROWS, BLOCK_N], tl.float32)
    place = tl.full([BLOCK_ROWS, BLOCK_N], -1, tl.int32)
    rounds = tl.cdiv(tl.cdiv(n, BLOCK_N), parts)
    for block in range(part * rounds, (part + 1) * rounds):
        entry = block * BLOCK_N + tl.arange(0, BLOCK_N)
        there = entry < n
        at = all_h + (head * ROWS + row[:, None]) * n + entry[None, :]
        h = tl.load(at, mask=real & there[None, :], other=0.0)
        place = tl.where(h > DOMINANT, entry[None, :], place)
        w = tl.where(h > DOMINANT, 0.0, h)
        mass += w
        if FAST:
            # 1 even where no entry is `there`: `read_vectors` returns zeros for its value
            w = tl.where(real, 1.0, w)
        v = common.read_vectors(values, head, entry, there, D, BLOCK_D, WIDE)
        if not WIDE:
            w, down = in_pieces(w, piece[:, None], v.dtype)
        product = tl.dot(w, v, input_precision="ieee")
        if v.dtype.is_fp16():
            product *= down[:, None]
        total += product
    JOINED: constexpr = BLOCK_ROWS // PIECES
    total = tl.sum(tl.reshape(total, [JOINED, PIECES, BLOCK_D]), axis=1)
    joined, column = tl.arange(0, JOINED)[:, None], tl.arange(0, BLOCK_D)[None, :]
    first = (head * parts + part) * ROWS
    tl.store(sums + (first + joined) * D + column, total, mask=(joined < ROWS) & (column < D))
    # mass and place are the same in all lines of a row: its first one stores them
    stores = (piece == 0) & (row < ROWS)
    tl.store(masses + first + row, tl.sum(mass, axis=1), mask=stores)
    tl.store(places + first + row, tl.max(place, axis=1), mask=stores)


@common.kernel
def error_from_others(h, own_value, rest, left, most):
    """Return an entry's error from its weight and value, and the sum and the mass of all others."""
    apart = own_value - rest / tl.where(left > 0, left, 1.0)
    return tl.where(left > 0, h * tl.sqrt(tl.sum(apart * apart, axis=0)), most)


@common.kernel
def join_parts(
    all_h, values, points, dominant_errors, sums, masses, places,
    n, most,
    ROWS: constexpr, D: constexpr, PARTS: constexpr, BLOCK_PARTS: constexpr, BLOCK_D: constexpr,
    FAST: constexpr,
):  # fmt: skip
    """Join the sums of a row's parts to its output, and find the error of its dominant entry.

    Without a dominant entry ``place`` is -1, its value and weight are 0, and its error is not read.
    Grid: (heads, rows).
    """
    head, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    part, column = tl.arange(0, BLOCK_PARTS), tl.arange(0, BLOCK_D)
    there, real = part < PARTS, column < D
    at_row, at_parts = head * ROWS + row, (head * PARTS + part) * ROWS + row
    place = tl.max(tl.load(places + at_parts, mask=there, other=-1), axis=0)
    left = tl.sum(tl.load(masses + at_parts, mask=there, other=0.0), axis=0)
    here = there[:, None] & real[None, :]
    summed = tl.load(sums + at_parts[:, None] * D + column, mask=here, other=0.0)
    summed = tl.sum(summed, axis=0)  # without the dominant entry; FAST: with all
    at = values.data + head * values.head + place.to(tl.int64) * values.row + column
    own_value = tl.load(at, mask=real & (place >= 0), other=0.0).to(tl.float32)
    h = tl.load(all_h + at_row * n + place, mask=place >= 0, other=0.0)
    if FAST:
        point = summed / n
        apart = own_value - point
        distance = tl.sqrt(tl.sum(apart * apart, axis=0))
        error = h / tl.where(left > 0, left, 1.0) * distance
        error = tl.where(left > 0, tl.minimum(error, most), most)
    else:
        point = summed + h * own_value
        error = error_from_others(h, own_value, summed, left, most)
    tl.store(points + at_row * D + column, point, mask=real)
    tl.store(dominant_errors + at_row, error)


@common.kernel
def moved_back(norm, down, most):
    """Return norm · down, but at most ``most``, which is float32's largest number.

    Of rows whose errors are about that large, norm · down is larger and would overflow. A sixteenth
    of it does not; it is bounded by a sixteenth of ``most``, and then multiplied again.
    """
    return tl.minimum(norm * 0.0625 * down, most * 0.0625) * 16.0


@common.kernel
def add_heavy_errors(
    all_h, values, errors, head, first, last,
    n, limit, most,
    ROWS: constexpr, D: constexpr, BLOCK_ROWS: constexpr, BLOCK_D: constexpr,
):  # fmt: skip
    """Add to ``errors`` those of entries above ``limit``, for which all others are summed.

    `errors_of_entries` calls it for its own blocks, from ``first`` to ``last``, where the output
    was given; there such an entry has the errors of the other rows so far. Two rows may have the
    same entry, whose error then has a square of both.
    """
    number, column = tl.arange(0, BLOCK_ROWS), tl.arange(0, BLOCK_D)
    at = tl.full([BLOCK_ROWS], -1, tl.int32)  # of every row: the entry, and its error
    found = tl.zeros([BLOCK_ROWS], tl.float32)
    for row in range(0, ROWS):
        weights = all_h + (head * ROWS + row) * n
        place = tl.full([], -1, tl.int32)
        for block in range(tl.cdiv(first, WALKED), tl.cdiv(last, WALKED)):
            entry = block * WALKED + tl.arange(0, WALKED)
            h = tl.load(weights + entry, mask=entry < n, other=0.0)
            place = tl.maximum(place, tl.max(tl.where(h > limit, entry, -1), axis=0))
        if place >= 0:
            rest = tl.zeros([WALKED, BLOCK_D], tl.float32)
            left = tl.zeros([WALKED], tl.float32)
            for block in range(0, tl.cdiv(n, WALKED)):
                entry = block * WALKED + tl.arange(0, WALKED)
                h = tl.load(weights + entry, mask=(entry < n) & (entry != place), other=0.0)
                v = common.read_vectors(values, head, entry, entry < n, D, BLOCK_D, True)
                rest += h[:, None] * v
                left += h
            own_at = values.data + head * values.head + place.to(tl.int64) * values.row + column
            own_value = tl.load(own_at, mask=column < D, other=0.0).to(tl.float32)
            own_h = tl.load(weights + place)
            others, their_mass = tl.sum(rest, axis=0), tl.sum(left, axis=0)
            error = error_from_others(own_h, own_value, others, their_mass, most)
            at, found = tl.where(number == row, place, at), tl.where(number == row, error, found)
    to = errors + head * n + at
    if ROWS > 1:
        light = tl.load(to, mask=at >= 0, other=0.0)
        up, down = common.into_reach(tl.maximum(light, tl.max(found, axis=0)), 1)
        same = tl.where(at[:, None] == at[None, :], found[None, :] * up[:, None], 0.0)
        squares = light * up * (light * up) + tl.sum(same * same, axis=1)
        found = moved_back(tl.sqrt(squares), down, most)
    # two rows with one entry both store the same number there
    tl.store(to, found, mask=at >= 0)


@common.kernel
def odds_of(h, dominant_errors, at_row, limit):
    """Return h / (1 − h) of entries up to the limit, and the known error of one above it.

    Each is 0 for the other entries; without ``dominant_errors`` no error is known.
    """
    light = tl.where(h > limit, 0.0, h)
    known_error = 0.0
    if dominant_errors is not None:
        known_error = tl.where(h > limit, tl.load(dominant_errors + at_row), 0.0)
    return light / (1.0 - light), known_error


@common.tuned(
    "BLOCK_N STAGES",  # warps, stages of all loops, BLOCK_N, STAGES of the outer one:
    ((4, 1, 128, 1), (2, 1, 64, 1), (2, 3, 64, 3), (4, 3, 64, 3), (8, 1, 64, 1), (8, 3, 64, 3)),
    key=["kind", "ROWS", "D"],
)
@common.kernel
def errors_of_entries(
    all_h, values, points, dominant_errors, errors,
    n, kind, parts, limit, most,
    ROWS: constexpr, D: constexpr, BLOCK_ROWS: constexpr, BLOCK_N: constexpr, BLOCK_D: constexpr,
    WIDTH: constexpr, IN_A_LANE: constexpr, STAGES: constexpr,
):  # fmt: skip
    """Distance of every value to every row's output, weighted, L2 over the rows.

    ``points`` are the outputs, ``limit`` the weight above which an entry is dominant: its error is
    read from ``dominant_errors``, or without them computed from all other entries, by
    `add_heavy_errors`. ``kind`` is for the tuner alone, which reads arguments by name. Grid:
    (heads, parts); a program walks some blocks.

    Outputs are read once a program, and values once. WIDTH channels of an entry are read at a time,
    IN_A_LANE of them by a lane (a thread), so that the LANES that share an entry are few. They all
    compute the same odds of it, but for the first two configurations: with one stage, and as many
    entries in a block as a program has threads, each thread computes the odds of one entry. Squares
    are multiplied by the odds, and rows added, while channels are still apart; only then are
    channels added across lanes.
    """
    head, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    LANES: constexpr = WIDTH // IN_A_LANE
    CHUNKS: constexpr = BLOCK_D // WIDTH
    chunk = tl.arange(0, CHUNKS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    held = ()  # they stay in registers
    for row in tl.static_range(ROWS):  # pyright: ignore[reportGeneralTypeIssues]
        point = tl.load(points + (head * ROWS + row) * D + chunk, mask=chunk < D, other=0.0)
        held += (point.to(tl.float32)[:, None, :],)
    heaviest = tl.zeros([BLOCK_N], tl.float32)
    rounds = tl.cdiv(tl.cdiv(n, BLOCK_N), parts)
    for block in tl.range(part * rounds, (part + 1) * rounds, num_stages=STAGES):
        entry = block * BLOCK_N + tl.arange(0, BLOCK_N)
        there = entry < n
        at = entry.to(tl.int64)[None, :, None] * values.row + chunk[:, None, :]
        real = there[None, :, None] & (chunk < D)[:, None, :]
        v = tl.load(values.data + head * values.head + at, mask=real, other=0.0)
        up, down = 1.0, 1.0
        # `up` moves an entry's largest number between 2 and 4, and `down` back: or squares of small
        # errors would be 0, and those of large ones infinite. One row needs no squares of odds.
        if ROWS > 1:
            top = tl.zeros([BLOCK_N], tl.float32)
            for row in tl.static_range(ROWS):
                at_row = head * ROWS + row
                h = tl.load(all_h + at_row * n + entry, mask=there, other=0.0)
                odds, known_error = odds_of(h, dominant_errors, at_row, limit)
                top = tl.maximum(top, tl.maximum(odds, known_error))
            up, down = common.into_reach(top, 1)
        squares = tl.zeros([BLOCK_N, LANES], tl.float32)
        known = tl.zeros([BLOCK_N], tl.float32)
        for row in tl.static_range(ROWS):
            at_row = head * ROWS + row
            h = tl.load(all_h + at_row * n + entry, mask=there, other=0.0)
            heaviest = tl.maximum(heaviest, h)
            odds, known_error = odds_of(h, dominant_errors, at_row, limit)
            odds *= up
            only_odds = odds  # read below if there is only one row, for which `up` is 1
            known += known_error if ROWS == 1 else (known_error * up) * (known_error * up)
            apart = v.to(tl.float32) - held[row]
            # a lane has IN_A_LANE channels of every chunk: side by side, it adds them up by itself
            apart = tl.reshape(apart * apart, [CHUNKS, BLOCK_N, LANES, IN_A_LANE])
            apart = tl.reshape(apart.permute(1, 2, 0, 3), [BLOCK_N, LANES, CHUNKS * IN_A_LANE])
            apart = tl.sum(apart, axis=2)
            squares += apart if ROWS == 1 else apart * (odds * odds)[:, None]
        total = tl.sum(squares, axis=1)
        if ROWS == 1:
            error = only_odds * tl.sqrt(total) + known
        else:
            error = moved_back(tl.sqrt(total + known), down, most)
        tl.store(errors + head * n + entry, error, mask=there)
    if dominant_errors is None:
        best = tl.max(heaviest, axis=0)
        if best > limit:
            tl.debug_barrier()  # errors that other threads stored above are read below
            add_heavy_errors(
                all_h, values, errors, head, part * rounds * BLOCK_N,
                (part + 1) * rounds * BLOCK_N, n, limit, most, ROWS, D, BLOCK_ROWS, BLOCK_D,
            )  # fmt: skip


def _errors_in_triton(h: Tensor, values: Tensor, fast: bool, output: Tensor | None) -> Tensor:
    N, G, rows, n = h.shape
    d, heads = values.shape[3], N * G
    h = h.to(torch.float32).contiguous()
    vectors = common.rows_of(common.per_head(values))
    parts_of_errors = max(1, min(PROGRAMS // heads, triton.cdiv(n, common.ENTRIES_OF_A_PART)))
    errors, most = h.new_empty(N, G, n), torch.finfo(torch.float32).max
    kind = common.kind_of_call(heads, n)
    block = {"BLOCK_D": common.columns(d), "ROWS": rows, "D": d}
    exact_output = None if fast or output is None or output.itemsize < 4 else output
    if exact_output is not None:
        points, dominant_errors = exact_output.contiguous(), None
        limit = DOMINANT_IN_FLOAT32
    else:
        limit = DOMINANT.value
        parts_of_sums = common.split(n, common.ENTRIES_OF_A_PART, heads, h.device)
        masses = h.new_empty(heads, parts_of_sums, rows)
        sums = h.new_empty(heads, parts_of_sums, rows, d)
        places = torch.empty_like(masses, dtype=torch.int32)
        points, dominant_errors = h.new_empty(heads, rows, d), h.new_empty(heads, rows)
        wide = common.multiplied_in_float32(values)
        pieces = 1 if wide else 4  # `in_pieces` fills three; Triton's sizes are powers of two
        sums_of_others[(heads, parts_of_sums)](
            h, vectors, sums, masses, places,
            n, kind, parts_of_sums,
            BLOCK_ROWS=common.columns(pieces * common.magnitude(rows)), PIECES=pieces,
            FAST=fast, WIDE=wide, **block,
        )  # fmt: skip
        join_parts[(heads, rows)](
            h, vectors, points, dominant_errors, sums, masses, places,
            n, most,
            PARTS=parts_of_sums, BLOCK_PARTS=common.magnitude(parts_of_sums), FAST=fast, **block,
        )  # fmt: skip
    errors_of_entries[(heads, parts_of_errors)](
        h, vectors, points, dominant_errors, errors,
        n, kind, parts_of_errors, limit, most,
        BLOCK_ROWS=common.magnitude(rows), WIDTH=min(64, common.columns(d)),
        IN_A_LANE=BYTES_OF_A_LANE // values.itemsize, **block,
    )  # fmt: skip
    return errors
