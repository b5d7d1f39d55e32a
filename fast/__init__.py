"""KV-cache compression in PyTorch and Triton, on Hugging Face models: the names that users import.

Importing this package does not import PyTorch; the first use of one of its names does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvlab.fast import methods as methods
    from kvlab.fast.bridges.kvpress import press as press
    from kvlab.fast.engine.observation import Needs as Needs, Observation as Observation
    from kvlab.fast.engine.policy import (
        Budget as Budget,
        Policy as Policy,
        Precision as Precision,
        Protect as Protect,
        Score as Score,
    )
    from kvlab.fast.engine.step import Block as Block, StepResult as StepResult
    from kvlab.fast.engine.twins import twin_of as twin_of
    from kvlab.fast.huggingface import (
        CacheMemory as CacheMemory,
        CompressedCache as CompressedCache,
        compress as compress,
    )

HOMES = {
    "bridges.kvpress": ("press",),
    "huggingface": ("CacheMemory", "CompressedCache", "compress"),
    "engine.observation": ("Needs", "Observation"),
    "engine.policy": ("Budget", "Policy", "Precision", "Protect", "Score"),
    "engine.twins": ("twin_of",),
    "engine.step": ("Block", "StepResult"),
}
"""Modules, and the names that are taken from them."""


def __getattr__(name: str) -> Any:
    if name == "methods":
        return import_module(f"{__name__}.methods")
    home = next((module for module, names in HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{home}"), name)
    except ModuleNotFoundError as error:
        extras = "fast,kvpress" if home == "bridges.kvpress" else "fast"
        raise ModuleNotFoundError(
            f"kvlab.fast.{name} needs {error.name}: pip install 'kvlab[{extras}]'", name=error.name
        ) from error


def __dir__() -> list[str]:
    return ["methods", *(name for names in HOMES.values() for name in names)]
