"""How computed numbers become stored ones, so that every machine stores the same bits.

Float64 arithmetic differs between processors and BLAS libraries in the last digits. What is stored
is float32, and a case in which a number lies so close to the middle between two float32 numbers
that those digits would decide is not used: other inputs are drawn.
"""

import numpy as np
from jaxtyping import Float

from kvlab.reference.conformance.case import Case, Expected, Inputs, Parameters
from kvlab.reference.conformance.operation import DTYPES
from kvlab.reference.conformance.targets import operation, target_of
from kvlab.reference.notation import Array

RELATIVE = 1e-13
"""Bound on the error of float64 arithmetic of these sizes, relative to the number."""

CANCELLED = 1e-15
"""The same, relative to the largest number, where positive and negative terms cancel."""

NOTHING = 1e-13
"""If terms cancel to less than this share of the largest number, the result is stored as 0."""


class UncertainError(Exception):
    """A number could be stored in two ways."""


def finished(
    name: str,
    method: str | None,
    group: str,
    number: str,
    parameters: Parameters,
    inputs: Inputs,
) -> Case:
    """Round the inputs of the operation ``name`` as they are stored, and let the reference answer.

    Raises:
        UncertainError: if a number could be stored in two ways.
    """
    described = operation(name, method, parameters.get("budget"))
    stored = {}
    for field, x in inputs.items():
        kind = described.input(field, x).kind
        stored[field] = rounded(x) if kind == "float" else x.astype(DTYPES[kind])
    expected = described.compute(stored, parameters, method)
    target = target_of(name, method)
    full_name = "/".join(part for part in (target, group, method, number) if part)
    answers = {field: stored_answer(each) for field, each in expected.items()}
    return Case(full_name, target, group, method, dict(parameters), stored, answers)


def stored_answer(each: Expected) -> Expected:
    """Round expected numbers; exact values are stored as they are."""
    if each.kind != "numbers":
        return each
    value = each.value if each.where is None else np.where(each.where, each.value, 0.0)
    slack = None if each.slack is None else rounded(each.slack)
    return Expected("numbers", rounded(value), each.tolerance, each.where, slack, each.either)


def rounded(x: Array) -> Array:
    """Round numbers to float32.

    Raises:
        UncertainError: if float64's last digits would decide.
    """
    if not is_safe(x):
        raise UncertainError
    return to_float32(x.astype(np.float64))


def to_float32(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Round to float32, in float64; numbers that cancelled to almost nothing become 0."""
    limit = nothing(x)
    cleaned = np.where(np.abs(x) <= limit, 0.0, x) if limit else x
    return cleaned.astype(np.float32).astype(np.float64)


def is_safe(x: Float[Array, "..."]) -> bool:
    """Whether float64's last digits do not decide how any number is stored."""
    size = np.abs(x[np.isfinite(x)])
    limit = nothing(x)
    uncertain = RELATIVE * size + CANCELLED / NOTHING * limit
    vanishing = (size > limit / 2) & (size < limit * 2)
    stored = size.astype(np.float32)
    to_middle = np.spacing(stored).astype(np.float64) / 2 - np.abs(size - stored)
    close = (to_middle < uncertain) & (size > limit)
    return not (vanishing | close).any()


def nothing(x: Float[Array, "..."]) -> float:
    """Return the size below which a number is left over from cancelling; 0 if all signs agree."""
    finite = x[np.isfinite(x)]
    mixed = (finite < 0).any() and (finite > 0).any()
    return NOTHING * float(np.abs(finite).max()) if mixed else 0.0
