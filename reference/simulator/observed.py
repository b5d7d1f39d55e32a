"""Queries, keys and values of a real model, and attention computed from its definition.

Nothing here goes through the policies: a whole problem is read at once, with the full cache.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Float

from kvlab.reference.attention import softmax
from kvlab.reference.files import load_tokenizer
from kvlab.reference.notation import Array
from kvlab.reference.tasks import reasoning
from kvlab.reference.transformer import Transformer

Gain = Callable[[int], float]


@dataclass(frozen=True)
class Head:
    """One query head of one layer, over a whole text of t tokens."""

    layer: int
    kv_head: int
    queries: Float[Array, "t d"]
    """Rotated, as the logits use them."""
    keys: Float[Array, "t d"]
    values: Float[Array, "t d"]

    def attention(self, gain: Gain = lambda i: 1.0) -> Float[Array, "t t"]:
        """Causal softmax of the scaled logits, row by row, each over what is visible.

        Args:
            gain: factor of the logits by the number of visible tokens.
        """
        t, d = self.queries.shape
        rows = np.zeros((t, t))
        for i in range(t):
            logits = gain(i + 1) * self.keys[: i + 1] @ self.queries[i] / np.sqrt(d)
            rows[i, : i + 1] = softmax(logits)
        return rows


@cache
def observe_heads(model: Path, problem: int = 0) -> tuple[Head, ...]:
    """Let the model read a held-out problem with its solution; return every query head.

    Args:
        model: Hugging Face directory of the embedded reasoner, or of a model with its vocabulary.
        problem: index among the held-out problems.

    Raises:
        FileNotFoundError: if the model directory is incomplete.
    """
    return read(model, problem, lambda i: 1.0)[0]


def surprise(model: Path, gain: Gain, problem: int = 0) -> float:
    """Return the mean −ln p of a solution's tokens if the model's own logits have a gain."""
    logits, tokens = read(model, problem, gain)[1:]
    start = prompt_tokens(problem)
    scores = logits[start - 1 : -1] - logits[start - 1 : -1].max(axis=1, keepdims=True)
    chosen = scores[np.arange(len(scores)), tokens[start:]]
    return float(np.mean(np.log(np.exp(scores).sum(axis=1)) - chosen))


def read(model: Path, problem: int, gain: Gain) -> tuple[tuple[Head, ...], Array, Array]:
    """Let the model read a problem with its solution: query heads, logits and tokens."""
    transformer = Transformer.from_directory(model)
    text = reasoning.held_out(problem + 1)[problem].text
    tokens = np.asarray(load_tokenizer(model).encode(text).ids, dtype=np.int64)
    heads: list[Head] = []

    def attend(layer: int, queries: Array, keys: Array, values: Array) -> Array:
        group = len(queries) // len(keys)
        outputs = []
        for h, own in enumerate(queries):
            head = Head(layer, h // group, own, keys[h // group], values[h // group])
            heads.append(head)
            outputs.append(head.attention(gain) @ head.values)
        return np.stack(outputs)

    logits = transformer.forward(tokens, 0, attend)
    return tuple(heads), logits, tokens


@cache
def received(model: Path, problem: int = 0) -> tuple[Float[Array, "t t"], ...]:
    """Return the attention of each KV head: the most that any of its query heads pays."""
    groups: dict[tuple[int, int], list[Array]] = {}
    for head in observe_heads(model, problem):
        groups.setdefault((head.layer, head.kv_head), []).append(head.attention())
    return tuple(np.max(rows, axis=0) for rows in groups.values())


def key_heads(model: Path) -> list[Head]:
    """Return one query head of each KV head: its keys and values."""
    first: dict[tuple[int, int], Head] = {}
    for head in observe_heads(model):
        first.setdefault((head.layer, head.kv_head), head)
    return list(first.values())


def prompt_tokens(problem: int) -> int:
    """Return the tokens of a held-out problem before its solution."""
    return len(reasoning.held_out(problem + 1)[problem].prompt.split(" "))
