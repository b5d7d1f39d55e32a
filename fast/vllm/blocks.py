"""Reading keys and values out of vLLM's blocks, whose inner order is the kernel's own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kvlab.fast.kernels.notation import Vectors

DIGIT = 128
"""Digits and 1 + a digit are exact in every number format of a cache."""

Write = Callable[[Tensor, Tensor], Tensor]
"""Writes keys and values ``[block, G, d]`` to an empty block, and returns the block."""


@dataclass(frozen=True)
class Layout:
    """Where in a block each number of a key and of a value is."""

    shape: tuple[int, int, int]
    """Tokens of a block, KV heads, head dimension."""
    keys: Int[Tensor, " numbers"]
    values: Int[Tensor, " numbers"]

    @classmethod
    def found(cls, write: Write, shape: tuple[int, int, int], like: Tensor) -> "Layout":
        """Find it by writing patterns; ValueError if a number has no place of its own.

        ``like`` has the number format and the device of the cache.
        """
        count = shape[0] * shape[1] * shape[2]
        numbers = torch.arange(count, device=like.device)
        zeros = like.new_zeros(shape)
        digits, base = [], 1
        while base < count:
            digits.append((base, (numbers // base % DIGIT + 1).to(like.dtype).view(shape)))
            base *= DIGIT
        places = []
        for pair in (lambda x: (x, zeros), lambda x: (zeros, x)):
            written = torch.stack([write(*pair(digit)).flatten() for _, digit in digits])
            (where,) = (written > 0).all(dim=0).nonzero(as_tuple=True)
            bases = torch.tensor([base for base, _ in digits], device=like.device)
            number = ((written[:, where].long() - 1) * bases[:, None]).sum(dim=0)
            index = numbers.new_full((count,), -1)
            index[number] = where
            if len(where) != count or (index < 0).any():
                raise ValueError("the attention backend does not store keys and values as given")
            places.append(index)
        return cls(shape, *places)

    def read(
        self, caches: Sequence[Tensor], ids: Int[Tensor, " blocks"], tokens: int
    ) -> tuple[Vectors, Vectors]:
        """Return keys and values of the first ``tokens`` of some blocks, for all layers."""
        keys, values = [], []
        for cache in caches:
            blocks = cache.flatten(1).index_select(0, ids)
            for found, places in ((keys, self.keys), (values, self.values)):
                found.append(self._in_order(blocks.index_select(1, places), tokens))
        return torch.stack(keys), torch.stack(values)

    def _in_order(
        self, numbers: Float[Tensor, "blocks numbers"], tokens: int
    ) -> Float[Tensor, "G n d"]:
        _, G, d = self.shape
        return numbers.view(-1, G, d)[:tokens].transpose(0, 1)
