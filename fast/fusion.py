"""Tensor arithmetic that torch.compile may fuse, where `compress(..., fuse=True)` asks for it.

A decision is some twenty small operations; started one by one, each costs more than it computes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch

_fuse: ContextVar[bool] = ContextVar("fuse", default=False)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def fusable(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a function of tensors and plain values be compiled when it is first called while fusing.

    It may change tensors in place, but must not depend on anything besides its arguments.
    """
    compiled = cache(lambda: torch.compile(function))

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return (compiled() if _fuse.get() else function)(*args, **kwargs)

    return call


@contextmanager
def fusing(fuse: bool) -> Iterator[None]:
    """Let fusable functions run compiled, or not."""
    before = _fuse.set(fuse)
    try:
        yield
    finally:
        _fuse.reset(before)
