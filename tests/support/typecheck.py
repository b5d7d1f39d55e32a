"""The run-time type checker of the tests: beartype, with int accepted where float is asked.

Checking every call takes more time than all else that the tests do. So a function is checked on its
first calls, and on some of its later ones; what checks a function is built when it is first called.
"""

import functools
import inspect
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any
from unittest.mock import patch

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import _decorator, _import_hook

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

FIRST = 30
"""Calls of a function that are all checked, in one process."""
EVERY = 100
"""Of the later calls, one in so many is checked."""
CALLS: dict[CodeType, Iterator[int]] = defaultdict(itertools.count)
"""Calls so far: functions that a function makes anew at each of its calls have the same code."""


def sample_calls(jaxtyped: Callable[..., Any]) -> Callable[..., Any]:
    """Return jaxtyping's decorator, made to check some calls of a function instead of all."""

    def decorate(function: Any, *, typechecker: Any) -> Any:
        if not inspect.isfunction(function):
            return jaxtyped(function, typechecker=typechecker)
        checked = functools.cache(lambda: jaxtyped(function, typechecker=typechecker))
        calls = CALLS[function.__code__]

        @functools.wraps(function)
        def sampled(*args: Any, **kwargs: Any) -> Any:
            if jaxtyping.config.jaxtyping_disable:
                return function(*args, **kwargs)
            call = next(calls)
            chosen = checked() if call < FIRST or call % EVERY == 0 else function
            return chosen(*args, **kwargs)

        return sampled

    def jaxtyped_sampled(function: Any = None, *, typechecker: Any) -> Any:
        if function is None:
            return functools.partial(decorate, typechecker=typechecker)
        return decorate(function, typechecker=typechecker)

    return jaxtyped_sampled


# The decorator module calls itself for the constructors, properties and class methods of a class.
_decorator.jaxtyped = jaxtyping.jaxtyped = sample_calls(jaxtyping.jaxtyped)


def code_of(loader: Any, name: str) -> CodeType | None:
    """Return a module's code with checks, which jaxtyping keeps in a file of its own.

    jaxtyping looks for such a file of every module that is imported meanwhile, and so compiles
    torch, SciPy and pandas anew. Here the modules of other packages are read from their own files.
    """
    file = functools.partial(
        _import_hook._optimized_cache_from_source, loader._typechecker.get_hash()
    )
    with patch("importlib._bootstrap_external.cache_from_source", file):
        return SourceFileLoader.get_code(loader, name)


_import_hook._JaxtypingLoader.get_code = code_of
_import_hook._JaxtypingLoader.exec_module = SourceFileLoader.exec_module
