"""Quantising in one pass, and attention of one token to entries stored at several precisions.

Bytes of `quantise`, for vectors of d channels of e bytes: read d·e, written d·bits/8 and 4 per
group. Bytes of `attend_to_tables`: every table's codes, scales and zero points once for keys and
once for values, and slots, 16; logits and probabilities in float32, 20·ρ per entry in all passes.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from kvlab.fast import attention, quantization
from kvlab.fast.kernels.choice import uses_triton
from kvlab.fast.kernels.coded_table import CodedTable
from kvlab.fast.quantization import Quantized


def quantise(x: Float[Tensor, "*rows length"], bits: int, group: int) -> Quantized:
    """Quantise and pack vectors along their last axis; see `kvlab.fast.quantization.quantize`.

    Triton takes widths and groups that fill bytes and lie within a power of two; others take
    PyTorch: 3 bits, and a last group that is shorter.
    """
    fills_bytes = bits in (2, 4, 8) and group * bits % 8 == 0
    whole = group & (group - 1) == 0 and x.shape[-1] % group == 0
    if uses_triton(x, doubles=True) and fills_bytes and whole:
        from kvlab.fast.kernels.triton.coded_launch import quantise_triton

        return quantise_triton(x, bits, group)
    return quantization.quantize(x, bits, group)


def outlier_scores(
    x: Float[Tensor, "*rows length"], group: int, over: Literal["outliers", "block"] = "outliers"
) -> Float[Tensor, "*rows groups"]:
    """Mean distance of each group's outliers to its mean, 0 without outliers (DesireKV Eq. 6).

    An outlier lies more than 1.5 interquartile ranges outside the quartiles. Computed in float64.

    Args:
        x: keys.
        group: channels that are judged together.
        over: average over the outliers, or over the whole group so that their number counts.
    """
    if uses_triton(x) and group & (group - 1) == 0 and x.shape[-1] % group == 0:
        from kvlab.fast.kernels.triton.coded_launch import outlier_scores_triton

        return outlier_scores_triton(x, group, over)
    return outlier_scores_torch(x, group, over)


def outlier_scores_torch(
    x: Float[Tensor, "*rows length"], group: int, over: Literal["outliers", "block"]
) -> Float[Tensor, "*rows groups"]:
    """Do what `outlier_scores` says, in PyTorch."""
    return torch.stack([one_group(block, over) for block in x.double().split(group, -1)], dim=-1)


def one_group(
    block: Float[Tensor, "*rows g"], over: Literal["outliers", "block"]
) -> Float[Tensor, "*rows"]:
    """Return the outlier score of one group of channels."""
    levels = torch.tensor([0.25, 0.75], dtype=block.dtype, device=block.device)
    first, third = torch.quantile(block, levels, dim=-1, keepdim=True)
    reach = 1.5 * (third - first)
    outlier = (block < first - reach) | (block > third + reach)
    distance = (block - block.mean(dim=-1, keepdim=True)).abs()
    total = (distance * outlier).sum(dim=-1)
    count = outlier.sum(dim=-1).clamp(min=1) if over == "outliers" else block.shape[-1]
    return total / count


def attend_to_tables(
    queries: Float[Tensor, "N G rho 1 d"],
    keys: Sequence[CodedTable],
    values: Sequence[CodedTable],
    entries: int,
    softcap: float | None = None,
) -> tuple[Float[Tensor, "N G rho 1 d"], Float[Tensor, "N G rho 1 n"]]:
    """Attend from one token to entries whose vectors lie in several tables.

    Args:
        queries: of the token; logits are q·k/√d.
        keys: tables that together hold each entry's key once.
        values: likewise; entries may be in other tables than their keys.
        entries: slots n; a slot in no table is empty.
        softcap: bound into which logits are squeezed.

    Returns:
        The output in the queries' number format, and the probabilities in float32. Codes of 3 bits
        take PyTorch.
    """
    arguments = queries, keys, values, entries, softcap
    fills_bytes = all(table.bits in (2, 4, 8, 16) for table in (*keys, *values))
    if fills_bytes and uses_triton(queries):
        from kvlab.fast.kernels.triton.coded_launch import attend_to_tables_triton

        return attend_to_tables_triton(*arguments)
    return attend_to_tables_torch(*arguments)


def attend_to_tables_torch(
    queries: Float[Tensor, "N G rho 1 d"],
    keys: Sequence[CodedTable],
    values: Sequence[CodedTable],
    entries: int,
    softcap: float | None,
) -> tuple[Float[Tensor, "N G rho 1 d"], Float[Tensor, "N G rho 1 n"]]:
    """Do what `attend_to_tables` says, in PyTorch, through dequantised copies."""
    dtype = attention.compute_dtype(queries.dtype)
    whole_keys, there = gathered(keys, entries, dtype)
    whole_values, _ = gathered(values, entries, dtype)
    mask = there[:, :, None, None]
    output, weights = attention.attend(queries.to(dtype), whole_keys, whole_values, mask, softcap)
    return output.to(queries.dtype), weights


def gathered(
    tables: Sequence[CodedTable], entries: int, dtype: torch.dtype
) -> tuple[Float[Tensor, "N G n d"], Shaped[Tensor, "N G n"]]:
    """Return all vectors in their slots, and which slots are taken."""
    first = tables[0].read(dtype)
    N, G, _, d = first.shape
    vectors = first.new_zeros(N, G, entries + 1, d)
    there = torch.zeros(N, G, entries + 1, dtype=torch.bool, device=first.device)
    for table in tables:
        targets = torch.where(table.slots < 0, entries, table.slots)
        vectors.scatter_(2, targets[..., None].expand(-1, -1, -1, d), table.read(dtype))
        there.scatter_(2, targets, True)
    return vectors[:, :, :entries], there[:, :, :entries]
