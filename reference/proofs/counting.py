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
from kvlab.reference.policy import Around
from kvlab.reference.streams import Stream, run_stream


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
    held: list[int] = field(default_factory=list)
    """Entries in the cache after each token."""


@dataclass(frozen=True)
class Counting(Around):
    """A score that counts how it is asked."""

    counts: Counts

    def observe(self, state: Any, seen: Any) -> Any:
        """Count the entries of scores that keep state."""
        if self.columns:
            self.counts.updated += seen.positions.shape[1]
        return super().observe(state, seen)

    def score(self, state: Any, seen: Any, candidates: Any, room: int) -> Any:
        """Count a ranking."""
        self.counts.rankings += 1
        return self.inner.score(state, seen, candidates, room)


def count_window(spec: str, budget: int, window: int) -> Counts:
    """Count over ``window`` tokens once the cache is full; the method's own period divides it."""
    counts, policy = Counts(), methods.get(spec, budget)
    policy = replace(policy, score=Counting(policy.score, counts))
    tokens = (budget // window + 3) * window
    queries, keys, values = np.random.default_rng(0).normal(size=(3, 1, tokens, 8))
    confidence = np.full(tokens, np.nan)
    stream = Stream(queries[None], keys, values, confidence, prompt=1, blocks=(1,) * tokens)
    for token, result in enumerate(run_stream(policy, stream), start=1):
        counts.held.append(len(result.cache))
        if token == tokens - window:
            counts.updated = counts.rankings = 0
            counts.held.clear()
    return counts
