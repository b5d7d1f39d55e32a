"""Imports of Python files that users name."""

import importlib.util
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType


def import_file(file: Path, name: str) -> ModuleType:
    """Import a Python file as the module ``name``; its own directory can be imported from.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no Python file, or fails.
    """
    if not file.is_file():
        raise FileNotFoundError(f"file = {file} does not exist")
    specification = importlib.util.spec_from_file_location(name, file)
    if specification is None or specification.loader is None:
        raise ValueError(f"file = {file} must be a Python file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    sys.path.insert(0, str(file.resolve().parent))
    try:
        with redirect_stdout(sys.stderr):  # stdout is for the results of commands alone
            specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's file does wrong is bad input
        del sys.modules[name]
        raise ValueError(f"file = {file} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module
