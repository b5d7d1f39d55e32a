"""The engine computes in the number formats of the model's own keys and values."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def without_autocast() -> Iterator[None]:
    """Compute in the number formats of the operands, also where `torch.autocast` is on."""
    with ExitStack() as stack:
        for kind in _device_types():
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def in_own_formats(compute: Callable[P, R]) -> Callable[P, R]:
    """Let a function compute `without_autocast`; nothing is entered where autocast is off."""

    @wraps(compute)
    def inner(*given: P.args, **options: P.kwargs) -> R:
        if not any(map(torch.is_autocast_enabled, _device_types())):
            return compute(*given, **options)
        with without_autocast():
            return compute(*given, **options)

    return inner


@cache
def _device_types() -> tuple[str, ...]:
    accelerator = torch.accelerator.current_accelerator()
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)
