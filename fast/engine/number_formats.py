"""The engine computes in the number formats of the model's own keys and values."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache

import torch

NOTHING = nullcontext()


@contextmanager
def without_autocast() -> Iterator[None]:
    """Compute in the number formats of the operands, also where `torch.autocast` is on."""
    with ExitStack() as stack:
        for kind in _device_types():
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def in_own_formats() -> AbstractContextManager[None]:
    """Return `without_autocast` for what each token runs: no context is made while it is off."""
    on = any(map(torch.is_autocast_enabled, _device_types()))
    return without_autocast() if on else NOTHING


@cache
def _device_types() -> tuple[str, ...]:
    accelerator = torch.accelerator.current_accelerator()
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)
