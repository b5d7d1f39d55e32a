"""How tensors lie in memory."""

from torch import Tensor


def per_head(x: Tensor) -> Tensor:
    """Return ``[N, G, n, ...]`` as ``[N·G, n, ...]`` without copying; rows lie one after another.

    Raises:
        ValueError: if that cannot be done.
    """
    try:
        flat = x.view(x.shape[0] * x.shape[1], *x.shape[2:])
    except RuntimeError:
        raise ValueError(f"strides {x.stride()} of {tuple(x.shape)} join no heads") from None
    if flat.shape[-1] > 1 and flat.stride(-1) != 1:
        raise ValueError(f"strides {x.stride()}: the last axis must be contiguous")
    return flat
