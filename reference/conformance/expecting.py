"""Expected values and their tolerances, from the size of what an implementation adds up."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from kvlab.reference.conformance.case import PRECISIONS, ROUNDING, Expected, Tolerance
from kvlab.reference.notation import Array

SUMS = 32.0
"""Roundings of float32 that a sum of some dozen terms, taken in any order, is granted."""

PRODUCTS = 8.0
"""Roundings of float32, relative to a logit's size, that its computation is granted; an error of a
logit is a relative error of the probability."""

STORED = 2.0
"""Roundings of 16 bits that an implementation is granted which holds probabilities and outputs
in 16 bits, as flash attention does before the product with the values."""

SMALLEST = {"float32": 1e-10, "float16": 2.0**-24, "bfloat16": 1e-10}
"""What probabilities round to zero below, relative to the largest number."""

TIES = 2.0
"""Two scores count as equal within this many tolerances: both may be off."""


def exact(value: Array, where: Array | None = None) -> Expected:
    """Expect copies, codes, counts and marks bit by bit."""
    return Expected("exact", value, where=where)


def numbers(
    value: Array,
    logit_size: float = 0.0,
    scale: float | None = None,
    where: Array | None = None,
    slack: Array | None = None,
) -> Expected:
    """Expect computed numbers.

    Args:
        value: what is expected, in float64.
        logit_size: largest Σ\\|q·k\\|/√d of the logits behind it, 0 where there are none.
        scale: size of the terms, where they cancel (outputs: the largest value); None where all
            terms are positive.
        where: elements that count.
        slack: further absolute tolerance of each element.
    """
    finite = value[np.isfinite(value)] if where is None else value[where & np.isfinite(value)]
    largest = float(np.abs(finite).max(initial=0.0)) if scale is None else scale
    tolerance = {}
    for precision in PRECISIONS:
        relative = (SUMS + PRODUCTS * logit_size) * ROUNDING["float32"]
        if precision != "float32":
            relative += STORED * ROUNDING[precision]
        absolute = relative * largest if scale is not None else SMALLEST[precision] * largest
        tolerance[precision] = Tolerance(absolute, relative)
    return Expected("numbers", value, tolerance, where, slack)


def scores(
    value: Float[Array, "G n"], candidates: Bool[Array, "G n"], logit_size: float
) -> Expected:
    """Expect scores of the candidates; where some are negative, terms have cancelled."""
    rated = value[candidates & np.isfinite(value)]
    scale = float(np.abs(rated).max()) if (rated < 0).any() else None
    return numbers(value, logit_size, scale, candidates)


def keep(
    indices: Int[Array, "G kept"],
    rated: Expected | None = None,
    candidates: Bool[Array, "G n"] | None = None,
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
    return Expected("keep", later_of(kept, either["float32"]), either=either)


def later_of(kept: Bool[Array, "G n"], either: Bool[Array, "G n"]) -> Int[Array, "G kept"]:
    """Return the keep set that holds the latest of the entries of equal worth.

    Which of them float64 calls better depends on the machine.
    """
    chosen = kept & ~either
    for g in range(len(kept)):
        places = int((kept[g] & either[g]).sum())
        equal = np.flatnonzero(either[g])
        chosen[g, equal[len(equal) - places :]] = True
    return np.nonzero(chosen)[1].reshape(len(kept), -1)


def near_threshold(
    rated: Float[Array, "G n"],
    candidates: Bool[Array, "G n"],
    kept: Bool[Array, "G n"],
    tolerance: Tolerance,
) -> Bool[Array, "G n"]:
    """Mark entries whose score is as good as the lowest that stays or the highest that goes.

    Where only entries on one side are marked, the choice is free of doubt and none is.
    """
    either = np.zeros_like(candidates)
    for g in range(len(rated)):
        stays, goes = candidates[g] & kept[g], candidates[g] & ~kept[g]
        if not stays.any() or not goes.any():
            continue
        lowest, highest = rated[g, stays].min(), rated[g, goes].max()
        near = candidates[g] & (
            equal_enough(rated[g], lowest, tolerance) | equal_enough(rated[g], highest, tolerance)
        )
        if equal_enough(lowest, highest, tolerance):
            either[g] = near
    return either


def equal_enough(x: Array | float, y: Array | float, tolerance: Tolerance) -> Any:
    """Whether two scores are the same within the error of both."""
    size = np.maximum(np.abs(x), np.abs(y))
    with np.errstate(invalid="ignore"):
        near = np.abs(x - y) <= TIES * (tolerance.absolute + tolerance.relative * size)
    return near | (x == y)
