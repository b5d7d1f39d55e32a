"""Launches the kernels of `tables`."""

# pyright: reportArgumentType=false
# Triton makes constexpr of plain numbers.

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvlab.fast.kernels.coded_table import CodedTable, partners_of
from kvlab.fast.kernels.tracking import Reduction
from kvlab.fast.kernels.triton.decode import combine
from kvlab.fast.kernels.triton.parts import magnitude, split
from kvlab.fast.kernels.triton.strides import on_its_device
from kvlab.fast.kernels.triton.tables import attend_to_a_part_of_tables
from kvlab.fast.quantization import Quantized

ENTRIES = 64
"""Entries that a part has at least, where there are so many."""
TOGETHER = 512
"""Entries whose probabilities a program of the second kernel finishes."""
TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@on_its_device
def attend_to_tables_triton(
    queries: Tensor,
    keys: Sequence[CodedTable],
    values: Sequence[CodedTable],
    entries: int,
    softcap: float | None,
    reduce: Reduction,
    partners: Sequence[Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """Do what `attend_to_tables` says, in Triton: one launch for all tables, one that combines."""
    N, G, rho, _, d = queries.shape
    heads, device, scores = N * G, queries.device, reduce != "skip"
    found = partners_of(keys, values, entries) if partners is None else partners
    asked = [number for number, table in enumerate(keys) if table.rows]
    order = sorted(range(len(values)), key=lambda number: -values[number].rows)
    given = [number for number in order if values[number].rows]
    rows = [keys[number].rows for number in asked]
    parts = max(split(sum(rows), ENTRIES, heads, device), magnitude(len(rows) or 1))
    f32 = {"dtype": torch.float32, "device": device}
    reduced = reduce not in ("none", "skip")
    shape = (N, G, entries) if reduced else (N, G, rho, 1, entries)
    if not rows:
        return torch.zeros_like(queries), torch.zeros(shape if scores else 0, **f32)
    raw = torch.full((heads, rho, entries) if scores else (0,), -torch.inf, **f32)
    largest, total = (torch.empty((heads, parts, rho), **f32) for _ in range(2))
    part_output = torch.empty((heads, parts, rho, d), **f32)
    output = torch.empty((heads, rho, d), dtype=queries.dtype, device=device)
    group = smallest_group((*keys, *values), d)
    groups = magnitude(max(1, d // group))
    sizes = {"RHO": rho, "D": d, "PARTS": parts, "BLOCK_D": max(16, magnitude(d))}
    key_vectors, key_scales, key_zeros, key_own = columns_of([keys[i] for i in asked])
    value_vectors, value_scales, value_zeros, value_own = columns_of([values[i] for i in given])
    attend_to_a_part_of_tables[(heads, parts)](
        queries.reshape(heads, rho, d).contiguous(),
        key_vectors, key_scales, key_zeros,
        tuple(keys[i].slots.contiguous() for i in asked),
        tuple(found[i].contiguous() for i in asked),
        value_vectors, value_scales, value_zeros,
        raw, largest, total, part_output,
        odd(rows), odd([values[i].rows for i in given]), odd(first_parts(rows, parts)),
        entries, magnitude(sum(rows)), d**-0.5, softcap or 0.0,
        KEY_BITS=tuple(keys[i].bits for i in asked), KEY_OWN=key_own,
        BY_CHANNEL=tuple(keys[i].by_channel for i in asked),
        VALUES=tuple(given), VALUE_BITS=tuple(values[i].bits for i in given), VALUE_OWN=value_own,
        GROUP=group, BLOCK_GROUPS=groups,
        BLOCK_RHO=max(magnitude(rho), 8 // groups),
        SOFTCAP=softcap is not None, SCORES=scores,
        TYPE=product_type(queries, (*keys, *values)), **sizes,
    )  # fmt: skip
    received = torch.empty((heads, entries), **f32) if reduced else raw
    combine[(heads, triton.cdiv(entries, TOGETHER) if scores else 1)](
        raw, largest, total, part_output, output, received, received, received,
        entries, 0.0, 0,
        BLOCK_RHO=max(16, magnitude(rho)), BLOCK_N=TOGETHER, BLOCK_PARTS=parts,
        REDUCE=reduce, TRACK=False, **sizes,
    )  # fmt: skip
    output = output.view(N, G, rho, 1, d)
    if not scores:
        return output, raw
    return output, received.view(shape)


def odd(numbers: Sequence[int]) -> tuple[int, ...]:
    """Return 2·x + 3 of every number: Triton compiles anew for 1 and for multiples of 16."""
    return tuple(2 * number + 3 for number in numbers)


def first_parts(rows: Sequence[int], parts: int) -> tuple[int, ...]:
    """Share parts out over tables by their rows, one at least each; return where each begins.

    The largest table gets what the others leave.
    """
    spare, largest = parts - len(rows), rows.index(max(rows))
    shares = [max(1, spare * count // sum(rows)) for count in rows]
    shares[largest] = parts - (sum(shares) - shares[largest])
    firsts = [0]
    for share in shares:
        firsts.append(firsts[-1] + share)
    return tuple(firsts)


def columns_of(
    tables: Sequence[CodedTable],
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...], tuple[int, ...]]:
    """Return vectors or codes of all tables, scales, zero points, and elements per scale."""
    vectors, scales, zeros, own = zip(*(parts_of(table) for table in tables), strict=True)
    return vectors, scales, zeros, own


def parts_of(table: CodedTable) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return what a table consists of; numbers as they are stand in for their own scales.

    Codes of 4 and 2 bits become words of 32 bits, but for those of channels.
    """
    if isinstance(table.vectors, Quantized):
        coded = table.vectors
        codes, scale, zero = (x.contiguous() for x in (coded.codes, coded.scale, coded.zero))
        if coded.bits < 8 and not table.by_channel:
            codes = codes.view(torch.int32)
        return codes, scale, zero, coded.group
    vectors = table.vectors.contiguous()
    return vectors, vectors, vectors, 0


def smallest_group(tables: Sequence[CodedTable], d: int) -> int:
    """Return the fewest channels that share a scale; all of them where no codes do."""
    groups = [
        table.vectors.group
        for table in tables
        if isinstance(table.vectors, Quantized) and not table.by_channel
    ]
    return min(groups, default=magnitude(d))


def product_type(queries: Tensor, tables: Sequence[CodedTable]) -> tl.dtype:
    """Return the numbers that are multiplied: those of plain vectors, or else of the queries.

    The interpreter has no products of bfloat16.
    """
    plain = [table.vectors.dtype for table in tables if isinstance(table.vectors, Tensor)]
    chosen = plain[0] if plain else queries.dtype
    if chosen == torch.bfloat16 and queries.device.type == "cpu":
        chosen = torch.float32
    return TYPES[chosen]
