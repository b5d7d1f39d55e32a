"""Expected outputs with their tolerances, which follow from the size of what is added up."""

import numpy as np
from jaxtyping import Float

from kvlab.reference.conformance.vectors import PRECISIONS, Expected
from kvlab.reference.notation import Array, KeepSet, Marks, Scores

ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of rounding to nearest."""

SUMS = 32.0
"""Roundings of float32 that are allowed in a sum of some dozen terms, in any order; in a sum over n
entries √n, where these are more."""

PRODUCTS = 8.0
"""Roundings of float32, relative to a logit's size, that are allowed in its computation; an error
of a logit is a relative error of the probability."""

STORED = 2.0
"""Roundings of 16 bits that are allowed, because an implementation may hold probabilities and
outputs in 16 bits, as flash attention does before the product with the values."""

SMALLEST = {"float32": 1e-10, "float16": 2.0**-24, "bfloat16": 1e-10}
"""Probabilities below this share of the largest number may round to zero."""

TIES = 2.0
"""Two scores count as equal within this many tolerances: both may be off."""


def logit_size(queries: Array, keys: Array) -> float:
    """Return the largest Σ\\|q·k\\|/√d; the rounding error of a logit is relative to it."""
    products = np.abs(queries) @ np.abs(keys)[:, None].swapaxes(-1, -2)
    return float(products.max(initial=0.0) / np.sqrt(queries.shape[-1]))


def largest(x: Array) -> float:
    """Return the largest size of an element."""
    return float(np.abs(x).max(initial=0.0))


def exact(value: Array, where: Array | None = None) -> Expected:
    """Expect copies, codes, counts and marks bit by bit."""
    return Expected("exact", value, where=where)


def numbers(
    value: Array,
    logit_size: float = 0.0,
    scale: float | None = None,
    where: Array | None = None,
    slack: Array | None = None,
    terms: int = 0,
) -> Expected:
    """Expect computed numbers.

    `logit_size` is that of the logits behind them, 0 where there are none. ``scale`` is the size of
    the terms, where they cancel (outputs: the largest value); None where all terms are positive.
    ``terms`` are added up, or as many as the last axis has. ``where`` and ``slack`` are those of
    `Expected`.
    """
    counted = np.isfinite(value) if where is None else where & np.isfinite(value)
    roundings = max(SUMS, np.sqrt(max(terms, value.shape[-1]))) + PRODUCTS * logit_size
    tolerance = {}
    for precision in PRECISIONS:
        relative = roundings * ROUNDING["float32"]
        if precision != "float32":
            relative += STORED * ROUNDING[precision]
        absolute = SMALLEST[precision] * largest(value[counted])
        tolerance[precision] = (absolute if scale is None else relative * scale, relative)
    return Expected("numbers", value, tolerance, where, slack)


def scores(value: Scores, candidates: Marks, logit_size: float) -> Expected:
    """Expect scores of the candidates; where some are negative, terms have cancelled."""
    rated = value[candidates & np.isfinite(value)]
    return numbers(value, logit_size, largest(rated) if (rated < 0).any() else None, candidates)


def keep(
    indices: KeepSet, rated: Expected | None = None, candidates: Marks | None = None
) -> Expected:
    """Expect a keep set; ``rated`` are scores that an implementation computes itself."""
    if rated is None or candidates is None:
        return Expected("keep", indices)
    kept = np.zeros_like(candidates)
    np.put_along_axis(kept, indices, True, axis=-1)
    either = {
        precision: near_threshold(rated.value, candidates, kept, tolerance)
        for precision, tolerance in rated.tolerance.items()
    }
    return Expected("keep", _later_of(kept, either["float32"]), either=either)


def _later_of(kept: Marks, either: Marks) -> KeepSet:
    """Return the keep set that holds the latest of the entries of equal worth.

    Which of these entries float64 rates higher depends on the machine.
    """
    chosen = kept & ~either
    for g in range(len(kept)):
        places = int((kept[g] & either[g]).sum())
        equal = np.flatnonzero(either[g])
        chosen[g, equal[len(equal) - places :]] = True
    return np.nonzero(chosen)[1].reshape(len(kept), -1)


def near_threshold(
    rated: Scores, candidates: Marks, kept: Marks, tolerance: tuple[float, float]
) -> Marks:
    """Mark entries whose score is as good as the lowest that is kept or the highest evicted.

    If only entries on one side are that close, the choice is clear and no entry is marked.
    """
    lowest, highest = threshold(rated, candidates, kept)

    def near(x: Array, y: Array) -> Array:
        absolute, relative = tolerance
        size = np.maximum(np.abs(x), np.abs(y))
        with np.errstate(invalid="ignore"):
            return (np.abs(x - y) <= TIES * (absolute + relative * size)) | (x == y)

    both = [(candidates & side).any(axis=-1, keepdims=True) for side in (kept, ~kept)]
    doubtful = near(lowest, highest) & both[0] & both[1]
    return candidates & doubtful & (near(rated, lowest) | near(rated, highest))


def threshold(
    rated: Scores, candidates: Marks, kept: Marks
) -> tuple[Float[Array, "G 1"], Float[Array, "G 1"]]:
    """Return the lowest kept score, ∞ if there is none, and the highest evicted one, or −∞."""
    lowest = np.where(candidates & kept, rated, np.inf).min(axis=-1, keepdims=True)
    return lowest, np.where(candidates & ~kept, rated, -np.inf).max(axis=-1, keepdims=True)
