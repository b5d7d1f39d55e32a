"""CAOTE's score of every entry: what the outputs lose when it alone leaves (CAOTE Eq. 8-9, 14).

Bytes, for N·G heads with k rows of retention, n entries of d channels of e bytes: values once,
n·d·e, retention three times, 12·k·n, scores written, 4·n. Without ``output``, and for the mean of
FastCAOTE, a float32 copy of the values is written and read before, 8·n·d. Operations: 3·k·n·d, and
2·k·n·d for the weighted sum.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from kvlab.fast.kernels.choice import untraced, uses_triton
from kvlab.fast.methods import caote

SAFE_MASS = 1e-3
"""Mass of all but the heaviest entry, below which their output is summed anew: subtracting the
heaviest from the whole would lose three digits there."""


@untraced
def eviction_errors(
    h: Float[Tensor, "N G k n"],
    values: Float[Tensor, "N G n d"],
    fast: bool = False,
    output: Float[Tensor, "N G k d"] | None = None,
) -> Float[Tensor, "N G n"]:
    """Return α/(1 − α)·‖o − v‖ of every entry, L2 over the rows of its head.

    Args:
        h: retention, each row adding up to 1; 0 for empty slots.
        values: of the entries.
        fast: FastCAOTE: the mean of all values stands in for the output; no slot may be empty.
        output: Σ h·v where the caller has it, as after attention; None to compute it.

    Returns:
        Errors in float32; an entry that has all the mass gets the largest number there is.
    """
    if uses_triton(h):
        from kvlab.fast.kernels.triton.caote_launch import eviction_errors_triton

        return eviction_errors_triton(h, values, fast, output)
    return eviction_errors_torch(h, values, fast, output)


def eviction_errors_torch(
    h: Float[Tensor, "N G k n"],
    values: Float[Tensor, "N G n d"],
    fast: bool,
    output: Float[Tensor, "N G k d"] | None,
) -> Float[Tensor, "N G n"]:
    """Do what `eviction_errors` says, in PyTorch; ``output`` is computed anew."""
    values = values.to(h.dtype)
    if fast:
        per_row = caote.fast_eviction_error(h, values, None)
    else:
        per_row = caote.eviction_error(h, values)
    return per_row[:, :, 0] if h.shape[2] == 1 else torch.linalg.vector_norm(per_row, dim=2)
