"""Queries, keys and values of a real model, and attention computed from its definition.

Nothing here goes through the policies: a whole problem is read at once, with the full cache.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Float

from kvlab.reference.notation import Array
from kvlab.reference.tasks import reasoning
from kvlab.reference.tokenizer import load_tokenizer
from kvlab.reference.transformer import Transformer


@dataclass(frozen=True)
class Head:
    """One query head of one layer, over a whole text of t tokens."""

    layer: int
    kv_head: int
    queries: Float[Array, "t d"]
    """Rotated, as the logits use them."""
    keys: Float[Array, "t d"]
    values: Float[Array, "t d"]

    def attention(self) -> Float[Array, "t t"]:
        """Causal softmax of the scaled logits, row by row, each over what is visible."""
        t, d = self.queries.shape
        rows = np.zeros((t, t))
        for i in range(t):
            logits = self.keys[: i + 1] @ self.queries[i] / np.sqrt(d)
            weights = np.exp(logits - logits.max())
            rows[i, : i + 1] = weights / weights.sum()
        return rows


@cache
def observe(model: Path, problem: int = 0, seed: int = 0) -> tuple[Head, ...]:
    """Let the model read a held-out problem with its solution; return every query head.

    Args:
        model: Hugging Face directory of the embedded reasoner, or of a model with its vocabulary.
        problem: index among the held-out problems.
        seed: of the held-out problems.

    Raises:
        FileNotFoundError: if the model directory is incomplete.
    """
    transformer = Transformer.from_directory(model)
    text = reasoning.held_out(problem + 1, seed)[problem].text
    tokens = np.asarray(load_tokenizer(model).encode(text).ids, dtype=np.int64)
    heads: list[Head] = []

    def attend(layer: int, queries: Array, keys: Array, values: Array) -> Array:
        group = len(queries) // len(keys)
        outputs = []
        for h, own in enumerate(queries):
            head = Head(layer, h // group, own, keys[h // group], values[h // group])
            heads.append(head)
            outputs.append(head.attention() @ head.values)
        return np.stack(outputs)

    transformer.forward(tokens, 0, attend)
    return tuple(heads)
