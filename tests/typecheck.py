"""The run-time type checker of the tests: beartype, with int accepted where float is asked.

Checking every call takes more time than all else that the tests do. So a function is checked on its
first calls, and on some of its later ones.
"""

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

FIRST = 30
"""Calls of a function that are all checked, in one process."""
EVERY = 100
"""Of the later calls, one in so many is checked."""


def sample_calls(jaxtyped: Callable[..., Any]) -> Callable[..., Any]:
    """Return jaxtyping's decorator, made to check some calls of a function instead of all."""

    def decorate(function: Any, *, typechecker: Any) -> Any:
        checked = jaxtyped(function, typechecker=typechecker)
        if not inspect.isfunction(function) or checked is function:
            return checked
        calls = itertools.count()

        @functools.wraps(function)
        def sampled(*args: Any, **kwargs: Any) -> Any:
            call = next(calls)
            chosen = checked if call < FIRST or call % EVERY == 0 else function
            return chosen(*args, **kwargs)

        return sampled

    def jaxtyped_sampled(function: Any = None, *, typechecker: Any) -> Any:
        if function is None:
            return functools.partial(decorate, typechecker=typechecker)
        return decorate(function, typechecker=typechecker)

    return jaxtyped_sampled


jaxtyping.jaxtyped = sample_calls(jaxtyping.jaxtyped)
