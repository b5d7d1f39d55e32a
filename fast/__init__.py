"""KV-cache compression in PyTorch and Triton, on Hugging Face models.

Importing this package does not import PyTorch: `compress` does, when it is first used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvlab.fast.huggingface import CompressedCache, compress

__all__ = ["CompressedCache", "compress"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from kvlab.fast import huggingface
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"kvlab.fast.{name} needs {error.name}: pip install 'kvlab[fast]'", name=error.name
        ) from error
    return getattr(huggingface, name)
