"""RoPE: the length that changes a model's frequencies, and rotation of vectors by positions."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

Rotation = Callable[[Tensor, Tensor], Tensor]
"""Rotates vectors ``[..., d]`` by a number of positions ``[...]``."""


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


def rotations(model: Any, d: int) -> Iterator[Rotation]:
    """Give the rotations that a layer of the model may apply to vectors of ``d`` channels.

    The first is none at all. Each rotary embedding has two more: families turn channel i with
    channel i + half, or every channel with its neighbour.
    """
    yield lambda vectors, by: vectors
    for name, frequencies in model.named_buffers():
        turned = 2 * frequencies.numel()
        if name.endswith("inv_freq") and turned <= d:
            yield rotation(frequencies, slice(turned // 2), slice(turned // 2, turned))
            yield rotation(frequencies, slice(0, turned, 2), slice(1, turned, 2))


def rotation(frequencies: Tensor, first: slice, second: slice) -> Rotation:
    """Return the rotation that turns the ``first`` channels with the ``second`` ones."""
    frequencies = frequencies.float()

    def rotate(vectors: Tensor, by: Tensor) -> Tensor:
        angles = by[..., None].float() * frequencies.to(vectors.device)
        cos, sin = angles.cos().to(vectors), angles.sin().to(vectors)
        x, y = vectors[..., first], vectors[..., second]
        turned = vectors.clone()
        turned[..., first], turned[..., second] = x * cos - y * sin, y * cos + x * sin
        return turned

    return rotate
