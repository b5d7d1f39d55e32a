"""CAOTE's score of every entry: what the outputs lose when it alone leaves (CAOTE Eq. 8-9, 14).

Bytes, for N·G heads with k rows of retention, n entries of d channels of e bytes: values once,
n·d·e, retention twice, 8·k·n, scores written, 4·n. Without ``output``, and for the mean of
FastCAOTE, values and weights are read once more before, n·d·e + 4·k·n. Operations: 3·k·n·d, and
2·k·n·d for the weighted sum.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kvlab.fast.kernels.choice import uses_triton


def eviction_errors(
    h: Float[Tensor, "N G k n"],
    values: Float[Tensor, "N G n d"],
    fast: bool = False,
    output: Float[Tensor, "N G k d"] | None = None,
) -> Float[Tensor, "N G n"]:
    """Return α/(1 − α)·‖o − v‖ of every entry, L2 over the rows of its head.

    Args:
        h: retention, each row adding up to 1; 0 for empty slots.
        values: values of the entries.
        fast: FastCAOTE: the mean of all values stands in for the output; no slot may be empty.
        output: Σ h·v where the caller has it, as after attention; None to compute it. An output
            of 16 bits is off by their rounding, and so are distances to it. PyTorch computes it
            anew.

    Returns:
        Errors in float32; an entry that has all the mass gets the largest number there is.
    """
    if uses_triton(h):
        from kvlab.fast.kernels.triton.caote import eviction_errors_triton

        return eviction_errors_triton(h, values, fast, output)
    values = values.to(h.dtype)
    per_row = fast_eviction_error(h, values, None) if fast else eviction_error(h, values)
    return joined_by_norm(per_row)


def joined_by_norm(per_row: Float[Tensor, "N G k n"]) -> Float[Tensor, "N G n"]:
    """Return the L2 norm over the rows; torch's vector_norm is 40 times slower along few rows."""
    return per_row[:, :, 0] if per_row.shape[2] == 1 else per_row.square().sum(dim=2).sqrt()


def remaining_mass(h: Float[Tensor, "N G k n"]) -> Float[Tensor, "N G k n"]:
    """Return Σh − h_j: of equal entries the same, and without cancellation."""
    total = h.sum(dim=-1, keepdim=True)
    dominant = h > total / 2
    others = h.masked_fill(dominant, 0.0).sum(dim=-1, keepdim=True)
    return torch.where(dominant, others, total - h)


def distances(
    point: Float[Tensor, "N G k d"], values: Float[Tensor, "N G n d"], norm: float
) -> Float[Tensor, "N G k n"]:
    """‖point − v_j‖ for every point of a head and every value."""
    return torch.cdist(point, values, p=norm, compute_mode="donot_use_mm_for_euclid_dist")


def eviction_error(
    h: Float[Tensor, "N G k n"], values: Float[Tensor, "N G n d"], norm: float = 2
) -> Float[Tensor, "N G k n"]:
    """c_j = h_j/(1 − h_j)·‖Σ h·v − v_j‖: the change of the output when entry j alone is evicted.

    The error of an entry above one half, at most one, is computed from the output of the others,
    where the printed formula loses its digits as h_j → 1; with all the mass, its error is the
    largest number there is.
    """
    largest, where = h.max(dim=-1, keepdim=True)
    others = h.scatter(-1, where, 0.0)
    mass = others.sum(dim=-1, keepdim=True)
    others_output = torch.matmul(others, values)
    heaviest = values.gather(2, where.expand(*where.shape[:3], values.shape[3]))
    output = torch.addcmul(others_output, largest, heaviest)
    error = h * distances(output, values, norm) / (1 - h)
    apart = torch.linalg.vector_norm(heaviest - others_output / mass, norm, dim=-1, keepdim=True)
    exact = torch.where(mass > 0, largest * apart, torch.finfo(h.dtype).max)
    return torch.where(h > 0.5, exact, error)


def fast_eviction_error(
    h: Float[Tensor, "N G k n"],
    values: Float[Tensor, "N G n d"],
    present: Bool[Tensor, "N G n"] | None,
    norm: float = 2,
) -> Float[Tensor, "N G k n"]:
    """FastCAOTE: the unweighted mean of all present values stands in for the output."""
    if present is None:
        mean = values.mean(dim=2, keepdim=True)
    else:
        entries = present.sum(dim=-1)[..., None, None].clamp(min=1)
        mean = (values * present[..., None]).sum(dim=2, keepdim=True) / entries
    rest = remaining_mass(h).clamp(min=torch.finfo(torch.float64).eps)
    return h / rest * distances(mean, values, norm)
