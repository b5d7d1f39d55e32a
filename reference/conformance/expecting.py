"""Expected outputs with their tolerances, and comparisons that say in words what is wrong.

Tolerances follow from the size of what an implementation adds up.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from kvlab.reference.conformance.case import PRECISIONS, ROUNDING, Expected, Tolerance
from kvlab.reference.notation import Array

SUMS = 32.0
"""Roundings of float32 that are allowed in a sum of some dozen terms, in any order."""

PRODUCTS = 8.0
"""Roundings of float32, relative to a logit's size, that are allowed in its computation; an error
of a logit is a relative error of the probability."""

STORED = 2.0
"""Roundings of 16 bits that are allowed, because an implementation may hold probabilities and
outputs in 16 bits, as flash attention does before the product with the values."""

SMALLEST = {"float32": 1e-10, "float16": 2.0**-24, "bfloat16": 1e-10}
"""Probabilities below this share of the largest number may round to zero."""

MOST_ENTRIES = 2.0**53
"""Largest index of an entry that is accepted; up to it float64 holds every index exactly."""

TIES = 2.0
"""Two scores count as equal within this many tolerances: both may be off."""


def exact(value: Array, where: Array | None = None) -> Expected:
    """Expect copies, codes, counts and marks bit by bit."""
    return Expected("exact", value, where=where)


def at_most(value: Array) -> Expected:
    """Expect numbers above 0 that do not exceed a bound."""
    return Expected("at_most", value)


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
    return Expected("keep", _later_of(kept, either["float32"]), either=either)


def _later_of(kept: Bool[Array, "G n"], either: Bool[Array, "G n"]) -> Int[Array, "G kept"]:
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
    rated: Float[Array, "G n"],
    candidates: Bool[Array, "G n"],
    kept: Bool[Array, "G n"],
    tolerance: Tolerance,
) -> Bool[Array, "G n"]:
    """Mark entries whose score is as good as the lowest that stays or the highest that goes.

    If only entries on one side are that close, the choice is clear and no entry is marked.
    """
    either = np.zeros_like(candidates)
    for g in range(len(rated)):
        stays, goes = candidates[g] & kept[g], candidates[g] & ~kept[g]
        if not stays.any() or not goes.any():
            continue
        lowest, highest = rated[g, stays].min(), rated[g, goes].max()
        near = candidates[g] & (
            _equal_enough(rated[g], lowest, tolerance) | _equal_enough(rated[g], highest, tolerance)
        )
        if _equal_enough(lowest, highest, tolerance):
            either[g] = near
    return either


def _equal_enough(x: Array | float, y: Array | float, tolerance: Tolerance) -> Any:
    size = np.maximum(np.abs(x), np.abs(y))
    with np.errstate(invalid="ignore"):
        near = np.abs(x - y) <= TIES * (tolerance.absolute + tolerance.relative * size)
    return near | (x == y)


# --- comparing -----------------------------------------------------------------------------------

HUGE = 1e30
"""Numbers from here on count as infinite: kernels may return the largest number instead."""


def difference(
    expected: Expected, found: Array, precision: str, axes: Sequence[str] = ()
) -> str | None:
    """Return what is wrong with an output, None if nothing is.

    Args:
        expected: what the reference says.
        found: the output.
        precision: number format in which the implementation works.
        axes: names of the output's axes, for messages about marks of positions.
    """
    if found.shape != expected.value.shape:
        return f"has the shape {found.shape}, expected {expected.value.shape}"
    if expected.kind == "keep":
        return _keep_difference(expected, found, precision)
    if expected.kind == "exact":
        return _exact_difference(expected, found, axes)
    if expected.kind == "at_most":
        return _bound_difference(expected.value, found)
    return _number_difference(expected, found, precision)


def _exact_difference(expected: Expected, found: Array, axes: Sequence[str]) -> str | None:
    wrong = found != expected.value
    if expected.where is not None:
        wrong &= expected.where
    if wrong.any() and [*axes][-1:] == ["t"]:
        return _wrong_positions(wrong, found, expected.value, axes)
    return _located(wrong, found, expected.value)


ONE_OF = {"calls": "call", "N": "row", "layers": "layer", "G": "KV head", "blocks": "block"}
"""What one place along an axis is called."""


def _wrong_positions(wrong: Array, found: Array, expected: Array, axes: Sequence[str]) -> str:
    """Say where marks of positions first differ, and which positions stay or are missing there."""
    heads = wrong.any(axis=-1)
    first = tuple(int(i) for i in np.argwhere(heads)[0])
    place = ", ".join(f"{ONE_OF[axis]} {i}" for axis, i in zip(axes, first, strict=False))
    extra, missing = (
        np.flatnonzero(wrong[first] & marks[first].astype(bool)).tolist()
        for marks in (found, expected)
    )
    told = [f"holds {extra} wrongly"] if extra else []
    told += [f"lacks {missing}"] if missing else []
    return (
        f"differs first in {place} (counted from 0), which {', and '.join(told)};"
        f" {int(heads.sum())} of {heads.size} such sets are wrong"
    )


def _bound_difference(bound: Array, found: Array) -> str | None:
    """Compare with the largest number that is allowed; 0 and less are no measurements."""
    wrong = ~((found > 0) & (found <= bound))
    if not wrong.any():
        return None
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    limit = f"more than the allowed {bound[first]:,.0f}"
    if not found[first] > bound[first]:
        limit = f"must be above 0 and at most {bound[first]:,.0f}"
    return f"is {found[first]:,.0f} at {[*first]}, {limit}"


def _number_difference(expected: Expected, found: Array, precision: str) -> str | None:
    value, tolerance = expected.value, expected.tolerance[precision]
    x = found.astype(np.float64)
    allowed = tolerance.absolute + tolerance.relative * np.abs(value)
    if expected.slack is not None:
        allowed = allowed + expected.slack
    infinite = np.isposinf(value)
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(x - value) <= allowed)
    wrong = np.where(infinite, ~(x >= HUGE), wrong)
    if expected.where is not None:
        wrong &= expected.where
    return _located(wrong, x, value, allowed)


def _keep_difference(expected: Expected, found: Array, precision: str) -> str | None:
    """Compare sets; entries that are marked ``either`` may be exchanged for each other."""
    if found.dtype.kind not in "iuf" or not (np.isfinite(found) & (found == np.rint(found))).all():
        return "holds indices that are no whole numbers"
    if (np.abs(found.astype(np.float64)) > MOST_ENTRIES).any():
        return "holds indices beyond any cache"
    found = found.astype(np.int64)  # differences of unsigned numbers would wrap around
    if (np.diff(found, axis=-1) <= 0).any():
        return f"must ascend without repetition, got {found.tolist()}"
    either = expected.either.get(precision)
    for g, (ours, theirs) in enumerate(zip(expected.value, found, strict=True)):
        apart = np.setxor1d(ours, theirs)
        if either is not None and len(apart) and apart.min() >= 0 and apart.max() < either.shape[1]:
            apart = apart[~either[g, apart]]
        if len(apart):
            missing, wrong = np.setdiff1d(ours, theirs), np.setdiff1d(theirs, ours)
            return (
                f"of KV head {g} keeps {wrong.tolist()} instead of {missing.tolist()}"
                f" (expected {ours.tolist()})"
            )
    return None


def _located(
    wrong: Array, found: Array, expected: Array, allowed: Array | None = None
) -> str | None:
    if not wrong.any():
        return None
    if allowed is None:
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        limit = ""
    else:
        with np.errstate(invalid="ignore", divide="ignore"):
            size = np.abs(found - expected) / np.broadcast_to(allowed, found.shape)
        size = np.where(wrong, np.nan_to_num(size, nan=np.inf, posinf=np.inf), -1.0)
        first = tuple(int(i) for i in np.unravel_index(int(np.argmax(size)), size.shape))
        tolerance = np.broadcast_to(allowed, found.shape)[first]
        limit = f" ± {tolerance:.1e}" if np.isfinite(tolerance) else ""
    return (
        f"is wrong in {int(wrong.sum())} of {wrong.size} elements, most at {list(first)}: "
        f"{shown(found[first])} instead of {shown(expected[first])}{limit}"
    )


def shown(x) -> str:
    """Format one element."""
    return f"{x:.7g}" if np.asarray(x).dtype.kind == "f" else str(x)
