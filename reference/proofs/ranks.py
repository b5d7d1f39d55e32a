"""Rank correlation."""

import numpy as np
from jaxtyping import Float, Int

from kvlab.reference.notation import Array


def spearman(
    first: Float[Array, " n"] | Int[Array, " n"], second: Float[Array, " n"] | Int[Array, " n"]
) -> float:
    """Spearman's rank correlation, with mean ranks for ties."""
    ranks = np.stack([mean_ranks(first), mean_ranks(second)])
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def mean_ranks(x: Float[Array, " n"] | Int[Array, " n"]) -> Float[Array, " n"]:
    """Rank of each value from 1; equal values share the mean of their ranks."""
    _, group, count = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[group]
