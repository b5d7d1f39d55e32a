"""Reading keys and values out of vLLM's blocks, whose inner order is the kernel's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvlab.fast.kernels.notation import Int, Tensor, Vectors

DIGIT = 128
"""Digits and 1 + a digit are exact in every number format of a cache."""


@dataclass(frozen=True)
class Layout:
    """Where in a block each number of a key and of a value is."""

    shape: tuple[int, int, int]
    """Tokens of a block, KV heads, head dimension."""
    keys: Int[Tensor, " numbers"]
    values: Int[Tensor, " numbers"]

    @classmethod
    def found(cls, attention: Any, layer: Any, cache: Tensor) -> "Layout":
        """Find it by letting a layer's attention write patterns; ValueError if that fails."""
        heads, d = attention.num_kv_heads, attention.head_size
        shape = (cache[0].numel() // (2 * heads * d), heads, d)
        numbers = torch.arange(cache[0].numel() // 2, device=cache.device)
        slots, zeros = torch.arange(shape[0], device=cache.device), cache.new_zeros(shape)
        places = []
        for of_keys in (True, False):
            number, where, base = torch.zeros_like(numbers), numbers[:0], 1
            while base < len(numbers):
                digit = (numbers // base % DIGIT + 1).to(cache.dtype).view(shape)
                block = torch.zeros_like(cache[:1])  # in the cache's own order
                given = (digit, zeros) if of_keys else (zeros, digit)
                attention.do_kv_cache_update(layer, *given, block, slots)
                (where,) = block.flatten().nonzero(as_tuple=True)
                if len(where) != len(numbers):
                    break
                number, base = number + (block.flatten()[where].long() - 1) * base, base * DIGIT
            if not torch.equal(number.sort().values, numbers):
                raise ValueError("the attention backend does not store keys and values as given")
            places.append(where[number.argsort()])
        return cls(shape, *places)

    def read(
        self, name: str, caches: Sequence[Tensor], ids: Int[Tensor, " blocks"], tokens: int
    ) -> Vectors:
        """Return keys or values of the first ``tokens`` of some blocks, for all layers."""
        places, (_, G, d) = getattr(self, name), self.shape
        found = caches[0].new_empty((len(caches), G, tokens, d))
        for number, cache in enumerate(caches):
            blocks = cache.index_select(0, ids).flatten(1)  # a cache is not copied, however it lies
            numbers = blocks.index_select(1, places).view(-1, G, d)
            found[number].copy_(numbers[:tokens].transpose(0, 1))
        return found
