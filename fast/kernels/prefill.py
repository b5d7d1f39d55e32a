"""Attention of a block's rows, and what every entry received from them, without their matrix.

Bytes, for N·G heads with ρ query heads, m rows, n entries of d channels of e bytes: `attend_block`
reads keys and values once for every block of the ρ·m rows, and writes outputs, ρ·m·d·e, and
log-sum-exps, 4·ρ·m. `received_attention` reads queries and log-sum-exps once for every block of
entries, keys once, and writes 4·n; without the log-sum-exps, it reads keys once more for every
block of rows. Operations: 4·ρ·m·n·d for attention, 2·ρ·m·n·d for what was received, as much again
for log-sum-exps; half of it where rows and entries are the same tokens, since blocks that no row
may read are passed over. Nothing of size m·n is ever stored.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.engine import attention
from kvlab.fast.kernels.choice import uses_triton


def attend_block(
    queries: Float[Tensor, "N G rho m d"],
    keys: Float[Tensor, "N G n d"],
    values: Float[Tensor, "N G n d"],
    query_positions: Int[Tensor, "N m"],
    positions: Int[Tensor, "N G n"],
    softcap: float | None = None,
) -> tuple[Float[Tensor, "N G rho m d"], Float[Tensor, "N G rho m"]]:
    """Attend from the rows of a block, and keep what `received_attention` would compute again.

    Args:
        queries: rows of the block; logits are q·k/√d.
        keys: keys of the entries, with any strides, channels next to each other.
        values: likewise.
        query_positions: positions of the rows; −1 for padding, which reads nothing.
        positions: of the entries; −1 marks empty slots. A row reads entries at or before its own.
        softcap: bound into which logits are squeezed.

    Returns:
        The output in the keys' number format, zeros for a row that reads nothing, and the logarithm
        of each row's sum of exponentials in float32, −inf there.
    """
    if uses_triton(queries):
        from kvlab.fast.kernels.triton.prefill import attend_block_triton

        return attend_block_triton(queries, keys, values, query_positions, positions, softcap)
    dtype = attention.compute_dtype(keys.dtype)
    mask = attention.visible(query_positions, positions)
    logits = attention.logits(queries.to(dtype), keys.to(dtype), softcap)
    lse = torch.logsumexp(logits.masked_fill(~mask, -torch.inf), dim=-1)
    output = attention.weighted_values(attention.softmax(logits, mask), values.to(dtype))
    return output.to(keys.dtype), lse


def received_attention(
    queries: Float[Tensor, "N G rho m d"],
    keys: Float[Tensor, "N G n d"],
    query_positions: Int[Tensor, "N m"],
    positions: Int[Tensor, "N G n"],
    gains: Float[Tensor, "N m"] | None = None,
    softcap: float | None = None,
    lse: Float[Tensor, "N G rho m"] | None = None,
) -> Float[Tensor, "N G n"]:
    """Add up the attention that every entry gets, over rows and query heads of its KV head.

    Give the rows that count: all rows for H2O, the last r rows with step gains for AhaKV, a window
    for SnapKV and RPC.

    Args:
        queries: rows of the block; logits are q·k/√d.
        keys: keys of the entries.
        query_positions: positions of the rows; −1 for padding, which reads nothing.
        positions: of the entries; −1 marks empty slots. A row reads entries at or before its own.
        gains: factor on each row's logits; None for 1.
        softcap: bound into which logits are squeezed, before the gain.
        lse: of these rows over these entries, where the caller has it from `attend_block`; None to
            compute it.

    Returns:
        Sums in float32.

    Raises:
        ValueError: if there are both gains, which change log-sum-exps, and ``lse``.
    """
    if gains is not None and lse is not None:
        raise ValueError("lse is that of attention without gains: give one of the two, not both")
    if uses_triton(queries):
        from kvlab.fast.kernels.triton.prefill import received_attention_triton

        return received_attention_triton(
            queries, keys, query_positions, positions, gains, softcap, lse
        )
    dtype = attention.compute_dtype(keys.dtype)
    queries, keys = queries.to(dtype), keys.to(dtype)
    factors = None if gains is None else gains.to(dtype)[:, None, None, :, None]
    if factors is not None and softcap is None:
        queries, factors = queries * factors, None  # fewer numbers than there are logits
    logits = attention.logits(queries, keys, softcap)
    if factors is not None:
        logits = logits * factors
    hidden = ~attention.visible(query_positions, positions)
    logits.masked_fill_(hidden, torch.finfo(dtype).min)
    weights = torch.softmax(logits, dim=-1, out=logits)
    beyond = torch.iinfo(positions.dtype).max
    oldest = positions.masked_fill(positions < 0, beyond).amin(dim=-1)
    reads = query_positions[:, None] >= oldest[:, :, None]  # the others got arbitrary weights
    counted = reads[:, :, None].to(dtype).expand(weights.shape[:-1])
    return torch.matmul(counted.flatten(2)[:, :, None], weights.flatten(2, 3))[:, :, 0]
