"""Learn, check and speed up KV-cache compression for large language models.

`reference` is the papers in NumPy, `fast` the engine in PyTorch; `methods` builds a method by its
name, `compress` makes a Hugging Face model use it, and `press` makes a press of kvpress of it. Each
is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvlab import fast, reference
    from kvlab.fast import compress, press
    from kvlab.reference import methods

    __version__: str

__all__ = ["__version__", "compress", "fast", "methods", "press", "reference"]


def __getattr__(name: str) -> object:
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("kvlab")
    if name in ("fast", "reference"):
        return import_module(f"kvlab.{name}")
    if name == "methods":
        return import_module("kvlab.reference.methods")
    if name in ("compress", "press"):
        return getattr(import_module("kvlab.fast"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
