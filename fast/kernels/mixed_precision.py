"""Attention of one token to entries stored at several precisions.

Bytes, for N·G heads with ρ query heads each and n entries of d channels, stored at b bits in groups
of g: codes, scales and zero points once for keys and once for values, 2·n·(d·b/8 + 4·d/g), and 4·n
for where each key's value lies. Only where probabilities are asked for: slots, 8·n, raw logits
filled, written and read as float32, 12·ρ·n, and what is handed out, 4·ρ·n, or 4·n if it is reduced.
At 4 bits, d = 128 and g = 64 that is 148 bytes per entry, where 16 bits take 512: at most 3.5 times
as fast. Operations: 4·ρ·n·d, and the unpacking of 2·n·d codes.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kvlab.fast.engine import attention
from kvlab.fast.engine.attention import Reduction
from kvlab.fast.engine.quantization import Quantized
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.vector_tables import VectorTable

MOST_SPREAD = 128
"""Query heads times groups of channels that one program of Triton takes."""


def attend_to_tables(
    queries: Float[Tensor, "N G rho 1 d"],
    keys: Sequence[VectorTable],
    values: Sequence[VectorTable],
    entries: int,
    softcap: float | None = None,
    reduce: Reduction = "none",
    partners: Sequence[Int[Tensor, "N G _"]] | None = None,
) -> tuple[Float[Tensor, "N G rho 1 d"], Tensor]:
    """Attend from one token to entries whose vectors lie in several tables.

    Triton takes codes of 2, 4 and 8 bits whose groups are powers of two, those of values along
    channels, whose rows fill words of 32 bits, up to `MOST_SPREAD` query heads times groups;
    PyTorch takes the others.

    Args:
        queries: queries of the token; logits are q·k/√d.
        keys: tables that together hold each entry's key once.
        values: likewise; entries may be in other tables than their keys.
        entries: slots n; a slot in no table is empty.
        softcap: bound into which logits are squeezed.
        reduce: how to join the query heads of a KV head; ``skip``: only the output is wanted.
        partners: result of `partners_of` for these tables, if the caller has kept it;
            None to compute it anew, which costs 32 bytes per entry.

    Returns:
        The output in the queries' number format, and the probabilities ``[N, G, rho, 1, n]`` or,
        reduced, ``[N, G, n]``, float32; with ``skip`` an empty tensor.
    """
    if uses_triton(queries) and suits_triton(keys, values, queries.shape[2]):
        from kvlab.fast.kernels.triton.mixed_precision import attend_to_tables_triton

        return attend_to_tables_triton(queries, keys, values, entries, softcap, reduce, partners)
    dtype = attention.compute_dtype(queries.dtype)
    whole_keys, there = gathered(keys, entries, dtype)
    whole_values, _ = gathered(values, entries, dtype)
    mask = there[:, :, None, None]
    output, weights = attention.attend(queries.to(dtype), whole_keys, whole_values, mask, softcap)
    output = output.to(queries.dtype)
    if reduce == "none":
        return output, weights
    if reduce == "skip":
        return output, weights.new_empty(0)
    return output, attention.reduce_group(weights[:, :, :, 0], reduce)


def gathered(
    tables: Sequence[VectorTable], entries: int, dtype: torch.dtype
) -> tuple[Float[Tensor, "N G n d"], Bool[Tensor, "N G n"]]:
    """Return all vectors in their slots, and which slots are taken."""
    first = tables[0].read(dtype)
    N, G, _, d = first.shape
    vectors = first.new_zeros(N, G, entries + 1, d)
    there = torch.zeros(N, G, entries + 1, dtype=torch.bool, device=first.device)
    for table in tables:
        targets = table.targets(entries)
        vectors.scatter_(2, targets[..., None].expand(-1, -1, -1, d), table.read(dtype))
        there.scatter_(2, targets, True)
    return vectors[:, :, :entries], there[:, :, :entries]


def suits_triton(keys: Sequence[VectorTable], values: Sequence[VectorTable], rho: int) -> bool:
    """Say whether Triton's kernel reads these formats."""
    if not all(_fits(table) for table in (*keys, *values)) or any(v.by_channel for v in values):
        return False
    return rho * max(_groups(table) for table in (*keys, *values)) <= MOST_SPREAD


def _fits(table: VectorTable) -> bool:
    if not isinstance(table.vectors, Quantized):
        return True
    coded = table.vectors
    if coded.bits not in (2, 4, 8) or coded.group & (coded.group - 1):
        return False
    if table.by_channel:
        return coded.group * coded.bits % 8 == 0
    return coded.length % coded.group == 0 and coded.length * coded.bits % 32 == 0


def _groups(table: VectorTable) -> int:
    if not isinstance(table.vectors, Quantized) or table.by_channel:
        return 1
    return table.vectors.length // table.vectors.group
