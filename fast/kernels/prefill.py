"""What every entry received from a block of queries, without their attention matrix.

Bytes, for N·G heads with ρ query heads, m rows, n entries, d channels of e bytes: keys once for the
log-sum-exp of every query head and block of rows, queries once for every block of entries, 4·n.
Operations: 4·ρ·m·n·d, twice the logits; nothing of size m·n is ever stored.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast import attention
from kvlab.fast.kernels.choice import uses_triton


def received_attention(
    queries: Float[Tensor, "N G rho m d"],
    keys: Float[Tensor, "N G n d"],
    query_positions: Int[Tensor, "N m"],
    positions: Int[Tensor, "N G n"],
    gains: Float[Tensor, "N m"] | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "N G n"]:
    """Add up the attention that every entry gets, over rows and query heads of its KV head.

    All rows for H2O, the last r with AhaKV's step gain, a window for SnapKV and RPC: give the rows
    that count.

    Args:
        queries: rows of the block; logits are q·k/√d.
        keys: of the entries.
        query_positions: of the rows; −1 for padding, which reads nothing.
        positions: of the entries; −1 marks empty slots. A row reads entries at or before its own.
        gains: factor on each row's logits; None for 1.
        softcap: bound into which logits are squeezed, before the gain.

    Returns:
        Sums in float32.
    """
    arguments = queries, keys, query_positions, positions, gains, softcap
    if uses_triton(queries):
        from kvlab.fast.kernels.triton.prefill_launch import received_attention_triton

        return received_attention_triton(*arguments)
    return received_attention_torch(*arguments)


def received_attention_torch(
    queries: Float[Tensor, "N G rho m d"],
    keys: Float[Tensor, "N G n d"],
    query_positions: Int[Tensor, "N m"],
    positions: Int[Tensor, "N G n"],
    gains: Float[Tensor, "N m"] | None,
    softcap: float | None,
) -> Float[Tensor, "N G n"]:
    """Do what `received_attention` says, in PyTorch, through the matrix."""
    dtype = attention.compute_dtype(keys.dtype)
    logits = attention.logits(queries.to(dtype), keys.to(dtype), softcap)
    if gains is not None:
        logits = logits * gains.to(dtype)[:, None, None, :, None]
    weights = attention.softmax(logits, attention.visible(query_positions, positions))
    return torch.sum(weights, dim=(2, 3))
