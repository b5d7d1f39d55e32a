"""Was it there when it mattered again?

An entry is activated by a token that gives it at least α of its attention. It regains importance
when it is activated after at least ``gap`` tokens without (LazyEviction §3 calls that recurrence).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from kvlab.reference.notation import Array
from kvlab.reference.policy import check_at_least
from kvlab.reference.traces.replay import Fate, Layer, stretches


@dataclass(frozen=True)
class Recall:
    """What one policy had when it was wanted, per KV head of one layer."""

    regained: Int[Array, " G"]
    """How often a generated token activated an entry again, after a gap."""
    hits: Int[Array, " G"]
    """How often such an entry was there."""
    evicted: Int[Array, " G"]
    """Entries that left."""
    premature: Int[Array, " G"]
    """Entries that left although a later token activated them."""
    lost: Float[Array, " G"]
    """Attention per generated token that went to entries that had left."""


def recall(
    layer: Layer, fates: Sequence[Fate], threshold: float = 0.01, gap: int = 16
) -> list[Recall]:
    """Judge what every policy kept by what the full cache looks at later.

    Args:
        layer: whose attention decides, mean over the query heads of a KV head.
        fates: of the entries of this layer.
        threshold: attention α from which on a token activates an entry.
        gap: tokens without activation after which an entry regains importance.

    Raises:
        ValueError: if ``threshold`` or ``gap`` is negative.
    """
    check_at_least(0, threshold=threshold, gap=gap)
    G, t, _ = layer.keys.shape
    active = np.zeros((G, t), dtype=np.int64) - 1
    """Latest token that activated each entry."""
    regained = np.zeros(G, dtype=np.int64)
    hits = np.zeros((len(fates), G), dtype=np.int64)
    for first, last in stretches(layer.prompt, t, None):
        attention = layer.full_attention(first, last).attention.mean(axis=1)
        for token in range(first, last):
            now = attention[:, token - first, :token] >= threshold
            before = np.maximum(active[:, :token], np.arange(token))
            if token >= layer.prompt:
                again = now & (token - before > gap)
                regained += again.sum(axis=1)
                for row, fate in enumerate(fates):
                    hits[row] += (again & (fate.left[:, :token] >= token)).sum(axis=1)
            active[:, :token][now] = token
    return [
        Recall(
            regained=regained,
            hits=hits[row],
            evicted=(fate.left < t).sum(axis=1),
            premature=((fate.left < t) & (active > fate.left)).sum(axis=1),
            lost=1 - fate.mass[:, layer.prompt :].mean(axis=1),
        )
        for row, fate in enumerate(fates)
    ]
