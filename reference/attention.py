"""Attention over a cache, for grouped query heads.

Axes are those of `kvlab.reference.notation`.
"""

from typing import Literal

import numpy as np

from kvlab.reference.checks import check_choice
from kvlab.reference.notation import Array, Attention, Bool, Float, Int, Positions, Queries, Vectors

GroupReduction = Literal["mean", "max", "sum"]


def group_heads(heads: Float[Array, "H m d"], kv_heads: int) -> Queries:
    """Put query head h = g·rho + r under the KV head g that it reads."""
    H, m, d = heads.shape
    if H % kv_heads:
        raise ValueError(f"query heads = {H} must be a multiple of kv_heads = {kv_heads}")
    return heads.reshape(kv_heads, H // kv_heads, m, d)


def reduce_group(x: Float[Array, "G rho ..."], how: GroupReduction) -> Float[Array, "G ..."]:
    """Reduce over the query heads that share a KV head."""
    reductions = {"mean": np.mean, "max": np.max, "sum": np.sum}
    check_choice(reductions, reduce=how)
    return reductions[how](x, axis=1)


def visible(query_positions: Int[Array, " m"], key_positions: Positions) -> Bool[Array, "G 1 m n"]:
    """Mark the entries that a query may read: those at its own position or before it."""
    return key_positions[:, None, None, :] <= query_positions[None, None, :, None]


def logits(queries: Queries, keys: Vectors, softcap: float | None = None) -> Attention:
    """Scaled dot products q·k/√d, squeezed into ±``softcap`` if a model asks for it (Gemma 2)."""
    d = queries.shape[-1]
    products = queries @ keys[:, None].swapaxes(-1, -2) / np.sqrt(d)  # [LazyEviction Eq. 3, logits]
    return products if softcap is None else softcap * np.tanh(products / softcap)


def softmax(
    x: Float[Array, "... n"], mask: Bool[Array, "... n"] | None = None
) -> Float[Array, "... n"]:
    """Softmax over the last axis, restricted to the entries where ``mask`` is true.

    Raises:
        ValueError: if ``x`` holds NaN or infinity, or a row has no entry to attend to.
    """
    if not np.isfinite(x).all():
        raise ValueError("attention logits must be finite, got NaN or infinity")
    if mask is not None:
        if not mask.any(axis=-1).all():
            raise ValueError("attention mask leaves a query without any entry to attend to")
        x = np.where(mask, x, -np.inf)
    weights = np.exp(x - x.max(axis=-1, keepdims=True))  # [LazyEviction Eq. 3, exp]
    return weights / weights.sum(axis=-1, keepdims=True)  # [LazyEviction Eq. 3, softmax]


def weighted_values(attention: Attention, values: Vectors) -> Queries:
    """Attention output X = A·V."""
    return attention @ values[:, None]  # [LazyEviction Eq. 3]


def attend(
    queries: Queries,
    keys: Vectors,
    values: Vectors,
    mask: Bool[Array, "G _ m n"] | None,
    softcap: float | None = None,
) -> tuple[Queries, Attention]:
    """Return the attention output and the attention probabilities of a block of queries.

    Raises:
        ValueError: if a logit is not finite, or a query may attend to no entry.
    """
    attention = softmax(logits(queries, keys, softcap), mask)
    return weighted_values(attention, values), attention
