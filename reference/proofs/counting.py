"""Counts: the operations of a formula; what methods update, rank and hold while they run.

The one file of proofs that imports the methods: LazyEviction's Table 6 and Fig. 6 are about what
methods do, not about a formula.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kvlab.reference import methods
from kvlab.reference.observation import Clock
from kvlab.reference.policy import Score
from kvlab.reference.step import Block, empty_cache, step


def _counts(operation: Callable[[float, float], Any]) -> Callable[[Any, float], Any]:
    def count(self: float, other: float) -> Any:
        Counted.operations += 1
        found = operation(float(self), float(other))
        return found if isinstance(found, bool) else Counted(found)

    return count


class Counted(float):
    """A number that counts what is computed with it, all such numbers together."""

    operations = 0

    __lt__ = _counts(operator.lt)
    __add__ = _counts(operator.add)
    __sub__ = _counts(operator.sub)
    __rsub__ = _counts(lambda x, y: y - x)
    __mul__ = _counts(operator.mul)
    __truediv__ = _counts(operator.truediv)


def operations(formula: Callable[..., Any], *arrays: Any) -> int:
    """Count the comparisons, sums, products and quotients that a formula takes on arrays."""
    numbers = [np.vectorize(Counted, otypes=[object])(each) for each in arrays]
    Counted.operations = 0
    formula(*numbers)
    return Counted.operations


@dataclass
class Counts:
    """What a method did while a stretch of tokens was generated."""

    updated: int = 0
    """Entries whose state was updated."""
    rankings: int = 0
    ranked: int = 0
    """Entries that were ranked, over all rankings."""
    held: list[int] = field(default_factory=list)
    """Entries in the cache after each token."""


@dataclass(frozen=True)
class Counting(Score):
    """A score that counts how it is asked."""

    inner: Score
    counts: Counts

    @property
    def columns(self) -> Any:
        """Columns of the counted score."""
        return self.inner.columns

    def observe(self, state: Any, seen: Any) -> Any:
        """Count the entries of scores that keep state."""
        if self.columns:
            self.counts.updated += seen.positions.shape[1]
        return self.inner.observe(state, seen)

    def score(self, state: Any, seen: Any, candidates: Any, room: int) -> Any:
        """Count a ranking."""
        self.counts.rankings += 1
        self.counts.ranked += seen.positions.shape[1]
        return self.inner.score(state, seen, candidates, room)


def count_window(spec: str, budget: int, window: int, seed: int = 0) -> Counts:
    """Count over ``window`` generated tokens, once the cache is full.

    Args:
        spec: registry syntax.
        budget: entries per head.
        window: tokens; the method's own period divides it.
        seed: seed of the random queries, keys and values.
    """
    counts = Counts()
    policy = methods.get(spec, budget)
    policy = replace(policy, score=Counting(policy.score, counts))
    rng, d = np.random.default_rng(seed), 8
    cache = empty_cache(policy, 1, d)
    warm = (budget // window + 2) * window
    for token in range(1, warm + window + 1):
        if token == warm + 1:
            counts.updated = counts.rankings = counts.ranked = 0
            counts.held.clear()
        queries, keys, values = (rng.normal(size=(1, 1, d)) for _ in range(3))
        clock = Clock(seen=token + 1, block=1, prompt=1)
        block = Block(clock, 0, queries[None], keys, values, np.full(token + 1, np.nan), None)
        cache = step(policy, cache, block).cache
        counts.held.append(len(cache))
    return counts
