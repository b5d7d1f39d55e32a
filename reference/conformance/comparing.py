"""Whether an output is right, and in words what is wrong with it."""

import numpy as np

from kvlab.reference.conformance.case import Expected
from kvlab.reference.notation import Array

HUGE = 1e30
"""What counts as infinite: kernels return the largest number there is."""


def difference(expected: Expected, found: Array, precision: str) -> str | None:
    """Return what is wrong with an output, None if nothing is.

    Args:
        expected: what the reference says.
        found: the output.
        precision: number format in which the implementation works.
    """
    if found.shape != expected.value.shape:
        return f"has the shape {found.shape}, expected {expected.value.shape}"
    if expected.kind == "keep":
        return keep_difference(expected, found, precision)
    if expected.kind == "exact":
        return exact_difference(expected, found)
    return number_difference(expected, found, precision)


def exact_difference(expected: Expected, found: Array) -> str | None:
    """Compare bit by bit; number formats may differ."""
    wrong = found != expected.value
    if expected.where is not None:
        wrong &= expected.where
    return located(wrong, found, expected.value)


def number_difference(expected: Expected, found: Array, precision: str) -> str | None:
    """Compare within the tolerance."""
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
    return located(wrong, x, value, allowed)


def keep_difference(expected: Expected, found: Array, precision: str) -> str | None:
    """Compare sets; entries that are marked ``either`` may be exchanged for each other."""
    if found.dtype.kind not in "iuf" or not (np.isfinite(found) & (found == np.rint(found))).all():
        return "holds indices that are no whole numbers"
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


def located(
    wrong: Array, found: Array, expected: Array, allowed: Array | None = None
) -> str | None:
    """Say how many elements are wrong, and show the worst."""
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
