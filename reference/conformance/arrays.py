"""Arrays of any library: NumPy, PyTorch, CuPy, JAX, or what speaks DLPack."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from kvlab.reference.notation import Array


def converter(library: str, device: str | None = None) -> Callable[[Array], Any]:
    """Return what makes a library's array of a NumPy array: its ``asarray``.

    Args:
        library: module with ``asarray``, such as ``torch``, ``cupy``, ``jax.numpy``.
        device: as the library names it; None for its default.

    Raises:
        ValueError: if the module cannot be imported or has no ``asarray``.
    """
    if library == "numpy" and device is None:
        return np.array
    try:
        module = importlib.import_module(library)
    except ModuleNotFoundError as error:
        raise ValueError(f"arrays = {library!r} cannot be imported: {error}") from None
    if not hasattr(module, "asarray"):
        raise ValueError(f"arrays = {library!r} must be a module with asarray, as torch or cupy")
    if device is None:
        return lambda x: module.asarray(x.copy())
    return lambda x: module.asarray(x.copy(), device=device)


def cast(x: Any, library: str, dtype: str) -> Any:
    """Return a library's array in another number format of the same library."""
    target = getattr(importlib.import_module(library), dtype)
    return x.to(target) if hasattr(x, "to") else x.astype(target)


def to_numpy(x: Any) -> Array:
    """Return an array of any library in main memory, 16-bit formats as float32.

    Raises:
        TypeError: if it is no array.
    """
    host = on_host(x)
    if "bfloat16" in str(getattr(host, "dtype", "")):
        host = host.float() if hasattr(host, "float") else host.astype("float32")
    if isinstance(host, list | tuple | int | float) or hasattr(host, "__array__"):
        found = np.asarray(host)
    elif hasattr(host, "__dlpack__"):
        found = np.from_dlpack(host)
    else:
        raise TypeError(f"an array was expected, got {type(x).__name__}")
    if found.dtype == object:
        raise TypeError("an array was expected, got nested objects of unequal length")
    return found


def on_host(x: Any) -> Any:
    """Return an array without its gradient, in main memory."""
    if hasattr(x, "detach"):  # PyTorch
        return x.detach().cpu()
    if hasattr(x, "get") and hasattr(x, "device"):  # CuPy
        return x.get()
    return x
