"""What every layer does to queries and keys with the position of a token, found out by trying.

A text of one token attends to itself alone. So all layers are given the same hidden states wherever
the token stands, and what its position changes in queries and keys is the layer's own doing: a
rotation, nothing, or what no rotation undoes (a norm after it, an attention temperature).
"""

import inspect
from typing import Any

import torch
from torch import Tensor

from kvlab.fast import methods
from kvlab.fast.engine.step import Block
from kvlab.fast.huggingface.agreement import evaluating, texts
from kvlab.fast.huggingface.attaching import attached
from kvlab.fast.huggingface.attachment import Attachment
from kvlab.fast.huggingface.attention import UnsupportedModelError
from kvlab.fast.huggingface.cache import CompressedCache
from kvlab.fast.huggingface.rotary import Rotation, longest_alike, rotations

POSITIONS = (1, 2**20)
"""The second is beyond the lengths at which attention temperatures begin (Llama 4, Ministral 3)."""

TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Largest distance of a vector from its rotation, as a share of its length: angles are float32, and
a rotated channel is the rounded sum of two rounded products."""


def rotations_of(model: Any, asking: str) -> list[Rotation]:
    """Return how every compressed layer rotates queries and keys.

    ValueError names who is ``asking``, a layer that does something else, and what was seen.
    """
    name, limit = type(model).__name__, longest_alike(model)
    if limit is not None:
        raise ValueError(
            f"{asking} cannot be used with {name}, because its rotary embedding takes "
            f"other frequencies beyond {limit} tokens"
        )
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise ValueError(
            f"{asking} cannot be used with {name}, because its forward takes no "
            "position_ids: what its layers do with positions cannot be found out"
        )
    start = _read(model, 0, asking)
    known = [list(rotations(model, block.keys.shape[-1])) for block in start]
    for position in POSITIONS:
        for layer, (at_start, block) in enumerate(
            zip(start, _read(model, position, asking), strict=True)
        ):
            by = torch.full((1,), position, device=block.keys.device)
            distances = [_distances(rotate, by, at_start, block) for rotate in known[layer]]
            allowed = TOLERANCE[block.keys.dtype]
            fits = [all(far <= allowed for far in pair.values()) for pair in distances]
            if not any(fits):
                nearest = min(distances, key=lambda pair: max(pair.values()))
                seen = " and ".join(f"{what} by {far:.2g}" for what, far in nearest.items())
                raise ValueError(
                    f"{asking} cannot be used with {name}: what layer {block.layer} does "
                    f"at position {position} is no rotation that kvlab knows (from the nearest "
                    f"one differ {seen} of their length)"
                )
            known[layer] = [one for one, fit in zip(known[layer], fits, strict=True) if fit]
    return [candidates[0] for candidates in known]


@torch.inference_mode()
def _read(model: Any, position: int, asking: str) -> list[Block]:
    """Return what the compressed layers are given for one token at a position."""
    blocks: list[Block] = []
    ids = texts(model)[0][:1, :1]
    at = torch.full_like(ids, position)
    attachment = Attachment(model, methods.get("full"), lambda block, _: blocks.append(block))
    cache = CompressedCache(attachment)

    def stand(*_: Any) -> None:
        cache.text.clock.columns = position  # of the cache's length Llama 4 makes its temperature

    layers = [module for module in model.modules() if hasattr(module, "layer_idx")]
    hooks = [layer.register_forward_pre_hook(stand) for layer in layers]
    try:
        with evaluating(model), attached(attachment, None):
            model(input_ids=ids, position_ids=at, past_key_values=cache)
    except (UnsupportedModelError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ValueError(
            f"{asking} cannot be used with {type(model).__name__}, which does not read a "
            f"token at position {position} alone ({' '.join(str(error).split())})"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    return blocks


def _distances(rotate: Rotation, by: Tensor, start: Block, block: Block) -> dict[str, float]:
    """Return how far queries and keys are from those at the start, rotated."""

    def distance(found: Tensor, expected: Tensor) -> float:
        far = (found.double() - expected.double()).norm(dim=-1)
        return float((far / expected.double().norm(dim=-1)).max())

    return {
        "queries": distance(block.queries, rotate(start.queries, by)),
        "keys": distance(block.keys, rotate(start.keys, by)),
    }
