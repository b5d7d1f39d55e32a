"""The registry of precisions: names that the option ``precision`` of every method takes.

A precision is found by itself: the registry looks through the modules of this package. Each says in
``FAMILY`` where its codes come from, and what they are called; where sources and engines differ
stands in ``divergences.toml``.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from kvlab.reference.cache import LayerCache
from kvlab.reference.codes import Code
from kvlab.reference.policy import Full, Precision


@dataclass(frozen=True)
class OnArrival(Precision):
    """Every entry is coded once, right after the block in which it came has been attended."""

    keys: Code
    values: Code

    def encode(self, cache: LayerCache) -> LayerCache:
        return replace(
            cache, keys=cache.keys.encode(self.keys), values=cache.values.encode(self.values)
        )


@dataclass(frozen=True)
class Family:
    """What one file says of its precisions."""

    source: str
    equations: tuple[str, ...]
    """Tags of the equations that the file implements, each tagged once in its code."""
    precisions: Mapping[str, OnArrival]
    """Precisions by name."""


@cache
def families() -> Mapping[str, Family]:
    """Return what each module of this package says of its precisions."""
    found = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}").FAMILY for name in found}


def precisions() -> Mapping[str, Precision]:
    """Return all precisions by name; ``full`` comes first."""
    named: dict[str, Precision] = {"full": Full()}
    for family in families().values():
        named |= family.precisions
    return named
