"""Where tensors lie: on which device, and how in its memory."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Launch = TypeVar("Launch", bound=Callable[..., Any])


def on_its_device(launch: Launch) -> Launch:
    """Let a function launch on the device of its first argument: Triton takes the current one."""

    @wraps(launch)
    def guarded(*arguments: Any) -> Any:
        first = arguments[0]
        x: Tensor = first[0] if isinstance(first, list) else first
        with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
            return launch(*arguments)

    return cast(Launch, guarded)


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
