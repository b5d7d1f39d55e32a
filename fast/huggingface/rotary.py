"""Rotation of stored keys by a number of positions, as a model's own RoPE would."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

STATIC_TYPES = ("default", "linear", "llama3", "yarn")
"""RoPE variants whose frequencies do not depend on the length of the text."""


def longest_alike(model: Any) -> int | None:
    """Return how long a text may be before its length changes the frequencies of its positions.

    None if no rotary embedding of the model does that. The types ``dynamic`` and ``longrope`` do:
    every call takes the frequencies that suit its last position.
    """
    limits = []
    for module in model.modules():
        types = getattr(module, "rope_type", None)
        for layers, kind in types.items() if isinstance(types, dict) else [(None, types)]:
            if kind == "longrope":
                parameters = module.config.rope_parameters
                parameters = parameters if layers is None else parameters[layers]
                limits.append(parameters["original_max_position_embeddings"])
            elif kind is not None and "dynamic" in kind:
                limits.append(module.original_max_seq_len)
    return min(limits, default=None)


def rotation_of(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function that rotates vectors ``[..., d]`` by positions ``[...]``.

    Rotary embeddings that cannot be applied to stored keys are refused.
    """
    found = [m for m in model.modules() if hasattr(m, "rope_type") and hasattr(m, "inv_freq")]
    if len(found) != 1 or found[0].rope_type not in STATIC_TYPES:
        raise ValueError(
            f"reposition = True needs one rotary embedding of type {', '.join(STATIC_TYPES)}; "
            f"{type(model).__name__} has {[m.rope_type for m in found] or 'none'}"
        )
    frequencies = found[0].inv_freq.float()

    def rotate(vectors: Tensor, by: Tensor) -> Tensor:
        angles = by[..., None].float() * frequencies.to(vectors.device)
        return turned(vectors, angles.cos().to(vectors), angles.sin().to(vectors))

    _check_convention(found[0], rotate)
    return rotate


def turned(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate channel i with channel i + half, for the first channels that RoPE covers."""
    half = cos.shape[-1]
    first, second, rest = vectors.split([half, half, vectors.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def _check_convention(rotary: Any, rotate: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Compare with the model's own function: families pair channels differently."""
    apply = getattr(sys.modules[type(rotary).__module__], "apply_rotary_pos_emb", None)
    if apply is None:
        raise ValueError(f"{type(rotary).__name__} has no rotary function to compare with")
    device = rotary.inv_freq.device
    vectors = torch.linspace(-1, 1, 2 * rotary.inv_freq.shape[-1], device=device)[None, None, None]
    positions = torch.tensor([[3]], device=device)
    cos, sin = rotary(vectors, positions)
    theirs, _ = apply(
        vectors, vectors, cos / rotary.attention_scaling, sin / rotary.attention_scaling
    )
    if not torch.allclose(theirs, rotate(vectors, positions[:, None]), atol=1e-5):
        raise ValueError(
            f"{type(rotary).__name__} pairs channels in a way that kvlab does not know"
        )
