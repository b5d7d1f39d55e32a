"""Learn, check and speed up KV-cache compression for large language models.

The two packages inside lie in the folders ``reference/`` and ``fast/`` of the repository.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("kvlab")
