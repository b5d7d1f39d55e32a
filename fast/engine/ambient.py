"""What PyTorch keeps for a whole thread must not change what a step computes."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import torch


@contextmanager
def without_autocast() -> Iterator[None]:
    """Compute in the number formats of the operands, also where `torch.autocast` is on."""
    with ExitStack() as stack:
        for kind in _device_types():
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@cache
def _device_types() -> tuple[str, ...]:
    accelerator = torch.accelerator.current_accelerator()
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)
