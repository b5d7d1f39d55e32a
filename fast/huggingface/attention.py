"""The attention and mask functions that compressed models call, registered with transformers.

A layer's ``update`` only tags the keys with a ticket; the attention function finds the layer by it,
and `kvlab.fast.step` does everything else.
"""

from math import isclose, sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from kvlab.fast.attention import attend, compute_dtype
from kvlab.fast.huggingface.cache import TICKET, CompressedLayer
from kvlab.fast.step import Block, step

IMPLEMENTATION = "kvlab"
"""Name of the two functions in the model's configuration."""


def attention(
    module: torch.nn.Module,
    query: Float[Tensor, "N H m d"],
    key: Float[Tensor, "N G n d"],
    value: Float[Tensor, "N G n d"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "N m H d"], None]:
    """Attend as the policy of the keys' layer says; the signature is transformers'."""
    ticket = getattr(key, TICKET, None)
    if ticket is None:
        output = _attend_uncompressed(
            module, query, key, value, attention_mask, scaling, softcap, **kwargs
        )
        return output, None
    if kwargs.get("s_aux") is not None:
        raise ValueError("kvlab does not know attention with learned sinks")
    layer: CompressedLayer = ticket.layer
    owner = layer.owner
    N, H, m, d = query.shape
    G = key.shape[1]
    if scaling is not None and not isclose(scaling, 1 / sqrt(d), rel_tol=1e-6):
        query = query.to(compute_dtype(query.dtype)) * (scaling * sqrt(d))
    block = Block(
        owner.expect_step().to(query.device),
        layer.number,
        query.view(N, G, H // G, m, d),
        key,
        value,
        owner.clock.confidence_so_far.to(query.device),
        owner.rotate,
        softcap,
        owner.shard.first_head(G),
    )
    layer.waiting = None
    if owner.joint is not None:
        output = owner.joint.attend(layer.place, block)
        return output.flatten(1, 2).transpose(1, 2), None
    result = step(owner.policy, layer.entries, block, watched=owner.watch is not None)
    if owner.watch is not None:
        owner.watch(block, result)
    return result.output.flatten(1, 2).transpose(1, 2), None


def _attend_uncompressed(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    **kwargs: Any,
) -> Tensor:
    """Attention of a sliding-window layer, as transformers computes it."""
    if softcap is None:
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **kwargs)[0]
    N, H, m, d = query.shape
    G, n, dtype = key.shape[1], key.shape[2], compute_dtype(key.dtype)
    if mask is None:
        causal = torch.ones(m, n, dtype=torch.bool, device=key.device).tril(n - m)
        mask = causal.expand(N, 1, m, n)
    scale = 1.0 if scaling is None else scaling * sqrt(d)
    queries = (query.to(dtype) * scale).view(N, G, H // G, m, d)
    output, _ = attend(queries, key.to(dtype), value.to(dtype), mask[:, :, None], softcap)
    return output.flatten(1, 2).transpose(1, 2).to(query.dtype)


def mask(*args: Any, local_size: int | None = None, **kwargs: Any) -> Tensor | None:
    """Masks of sliding-window layers; compressed layers make theirs from positions."""
    if local_size is None:
        return None
    return sdpa_mask(*args, local_size=local_size, **kwargs)


AttentionInterface.register(IMPLEMENTATION, attention)
AttentionMaskInterface.register(IMPLEMENTATION, mask)
