"""Attention and its output from their definitions, in floats and in whole numbers.

Attention α is a softmax, the output is X = Σ αᵢvᵢ, and evicting entries means to compute the
softmax anew over the others.
"""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Float

from kvlab.reference.notation import Array

ROUNDING = 1e-9
"""Largest relative difference of a quantity computed in two orders in float64: 1e-15 per term."""


def softmax(logits: Float[Array, "... n"]) -> Float[Array, "... n"]:
    """e^x divided by its sum over the last axis."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def output_without(
    logits: Float[Array, " n"], values: Float[Array, "n d"], evicted: Iterable[int]
) -> Float[Array, " d"]:
    """Attention output over the entries that stay."""
    stays = np.setdiff1d(np.arange(len(logits)), list(evicted))
    return softmax(logits[stays]) @ values[stays]


def random_caches(
    seed: int, number: int, entries: tuple[int, int]
) -> Iterator[tuple[Float[Array, " n"], Float[Array, "n d"]]]:
    """Logits and values of random caches of up to 8 channels.

    Args:
        seed: seed of everything random.
        number: caches.
        entries: the fewest, and one more than the most.
    """
    rng = np.random.default_rng(seed)
    for _ in range(number):
        n, d = int(rng.integers(*entries)), int(rng.integers(1, 9))
        yield 2 * rng.normal(size=n), rng.normal(size=(n, d))


def exact_output(weights: Sequence[int], values: Sequence[int], stays: Iterable[int]) -> Fraction:
    """Output over ``stays`` of one channel, for attention proportional to whole numbers."""
    kept = list(stays)
    total = sum(weights[i] for i in kept)
    return sum((Fraction(weights[i] * values[i], total) for i in kept), Fraction(0))


def exact_error(weights: Sequence[int], values: Sequence[int], evicted: Sequence[int]) -> Fraction:
    """|X − X'| of one channel when a set is evicted."""
    everything = range(len(weights))
    left = [i for i in everything if i not in evicted]
    return abs(exact_output(weights, values, everything) - exact_output(weights, values, left))
