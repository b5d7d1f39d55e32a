"""How computed numbers become stored ones, so that every machine stores the same bits.

Float64 arithmetic differs between processors and BLAS libraries in the last digits. What is stored
is float32, and a case in which a number lies so close to the middle between two float32 numbers
that those digits would decide is not used: other inputs are drawn.
"""

import numpy as np
from jaxtyping import Float

from kvlab.reference.notation import Array

RELATIVE = 1e-13
"""More than float64 arithmetic of these sizes is off, relative to the number."""

CANCELLED = 1e-15
"""The same, relative to the largest number, where positive and negative terms cancel."""

NOTHING = 1e-13
"""What cancelled to less, relative to the largest number, is stored as 0."""


def to_float32(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Round to float32 and return it in float64; what cancelled to almost nothing becomes 0."""
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
    """Below which size a number is left over from cancelling; 0 where no signs differ."""
    finite = x[np.isfinite(x)]
    mixed = (finite < 0).any() and (finite > 0).any()
    return NOTHING * float(np.abs(finite).max()) if mixed else 0.0
