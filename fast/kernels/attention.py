"""Attention over a cache, for grouped query heads, in batches.

Axes as in `kvlab.reference.notation`, with the batch ``N`` in front.
"""

from typing import Literal

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvlab.fast.kernels.notation import Bool, Float, Int, Probabilities, Queries, Tensor, Vectors
from kvlab.reference.attention import GroupReduction

Reduction = GroupReduction | Literal["none", "skip"]
"""How the query heads of a KV head are joined; ``none`` keeps them apart, ``skip`` drops them."""

Mask = Bool[Tensor, "N #G _ m _"] | None
"""Which entries every query may read; None: all of them."""
OverEntries = Float[Tensor, "*rows n"]
"""One number per entry, whatever the axes before them are."""


def compute_dtype(stored: torch.dtype) -> torch.dtype:
    """Return the format of logits, probabilities and scores: float64 for float64, else float32."""
    return torch.promote_types(stored, torch.float32)


def visible(
    query_positions: Int[Tensor, "N m"], key_positions: Int[Tensor, "N G n"]
) -> Bool[Tensor, "N G 1 m n"]:
    """Mark the entries that a query may read: at its own position or before, no empty slot."""
    entries = key_positions[:, :, None, None, :]
    return (entries <= query_positions[:, None, None, :, None]) & (entries >= 0)


def logits(queries: Queries, keys: Vectors, softcap: float | None = None) -> Probabilities:
    """Scaled dot products q·k/√d, squeezed into ±``softcap`` if a model asks for it (Gemma 2)."""
    N, G, rho, m, d = queries.shape
    n = keys.shape[2]
    products = torch.baddbmm(
        queries.new_empty(()),
        queries.reshape(N * G, rho * m, d),
        keys.reshape(N * G, n, d).transpose(1, 2),
        beta=0,
        alpha=d**-0.5,
    ).view(N, G, rho, m, n)
    return products if softcap is None else squeezed(products, softcap)


def squeezed(products: OverEntries, softcap: float | None) -> OverEntries:
    """Squeeze logits into ±``softcap``, if there is one."""
    return products if softcap is None else softcap * torch.tanh(products / softcap)


def hide(logits: OverEntries, visible: Bool[Tensor, "*_rows _"]) -> None:
    """Overwrite logits with the least number where nothing is ``visible``."""
    least = logits.new_full((), torch.finfo(logits.dtype).min)
    torch.where(visible, logits, least, out=logits)  # faster than masked_fill_ on a CPU


def softmax(x: OverEntries, mask: Bool[Tensor, "*_rows _"] | None = None) -> OverEntries:
    """Softmax over the last axis where ``mask`` is true; a row without any entry gets zeros.

    A mask of fewer entries is of the last ones; every row reads all entries before them. Overwrites
    ``x``: new memory of this size costs more time than the softmax.
    """
    if mask is None:
        return torch.softmax(x, dim=-1, out=x)
    hide(x[..., -mask.shape[-1] :], mask)
    torch.softmax(x, dim=-1, out=x)
    return x if mask.shape[-1] < x.shape[-1] else x.mul_(mask.any(dim=-1, keepdim=True))


def weighted_values(attention: Probabilities, values: Vectors) -> Queries:
    """Attention output X = A·V."""
    N, G, rho, m, n = attention.shape
    d = values.shape[3]
    rows = attention.reshape(N * G, rho * m, n)
    return torch.bmm(rows, values.reshape(N * G, n, d)).view(N, G, rho, m, d)


def attend(
    queries: Queries, keys: Vectors, values: Vectors, mask: Mask, softcap: float | None = None
) -> tuple[Queries, Probabilities]:
    """Return the attention output and the attention probabilities of a block of queries."""
    attention = softmax(logits(queries, keys, softcap), mask)
    return weighted_values(attention, values), attention


def attend_without_weights(
    queries: Queries, keys: Vectors, values: Vectors, mask: Mask, causal: bool = False
) -> Queries:
    """Return the attention output alone, by PyTorch's fused kernels, in the keys' number format.

    Without a mask, ``causal`` lets row i read the first i + 1 entries.
    """
    N, G, rho, m, d = queries.shape
    every = queries.flatten(1, 2).to(keys.dtype)
    if mask is None:
        return scaled_dot_product_attention(
            every, keys, values, is_causal=causal, enable_gqa=rho > 1
        ).view(N, G, rho, m, d)
    grouped = rho > 1 and not keys.is_cuda
    if rho > 1 and keys.is_cuda:  # no fused kernel takes a mask and grouped heads
        keys, values = (x.repeat_interleave(rho, dim=1) for x in (keys, values))
    heads = mask[:, 0] if mask.shape[1] == 1 else mask.expand(N, G, rho, m, -1).flatten(1, 2)
    output = scaled_dot_product_attention(
        every, keys, values, attn_mask=heads, enable_gqa=grouped
    ).view(N, G, rho, m, d)
    return torch.where(mask.any(-1, keepdim=True), output, 0.0)


def reduce_group(x: Float[Tensor, "N G rho *rest"], how: GroupReduction) -> Tensor:
    """Reduce over the query heads that share a KV head."""
    if x.shape[2] == 1:
        return x[:, :, 0]
    return x.amax(dim=2) if how == "max" else getattr(x, how)(dim=2)
