"""Reads an implementation from a Python file."""

import importlib.util
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from kvlab.reference.conformance.implementation import Functions

TABLE = "IMPLEMENTATIONS"
"""Name of the dictionary, target → function, that a file has to define."""


def load(
    file: Path,
    arrays: str | None = None,
    device: str | None = None,
    precision: str | None = None,
) -> Functions:
    """Run a Python file and return what it implements.

    Args:
        file: defines ``IMPLEMENTATIONS``, and may define ``ARRAYS``, ``DEVICE`` and ``PRECISION``.
        arrays: instead of the file's ``ARRAYS``; without both numpy.
        device: instead of the file's ``DEVICE``.
        precision: instead of the file's ``PRECISION``; without both float32.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be run, or defines no implementations.
    """
    module = run_file(file)
    table = getattr(module, TABLE, None)
    if not isinstance(table, Mapping) or not table:
        raise ValueError(f"{file} must define {TABLE}, a dictionary from targets to functions")
    functions: Mapping[str, Callable[..., Any]] = table
    return Functions(
        functions,
        arrays or getattr(module, "ARRAYS", "numpy"),
        device or getattr(module, "DEVICE", None),
        precision or getattr(module, "PRECISION", "float32"),
    )


def run_file(file: Path) -> ModuleType:
    """Import a file as a module; its own directory can be imported from.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no Python file, or fails.
    """
    if not file.is_file():
        raise FileNotFoundError(f"file = {file} does not exist")
    specification = importlib.util.spec_from_file_location(f"conformance_{file.stem}", file)
    if specification is None or specification.loader is None:
        raise ValueError(f"file = {file} must be a Python file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    sys.path.insert(0, str(file.resolve().parent))
    try:
        with redirect_stdout(sys.stderr):  # stdout is for the report alone
            specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's file does wrong is bad input
        raise ValueError(f"file = {file} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module
