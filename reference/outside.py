"""What ``KVLAB_METHODS`` names: modules and Python files from outside, and their source."""

import hashlib
import importlib
import os
import sys
from importlib.util import find_spec
from modulefinder import ModuleFinder
from pathlib import Path
from types import ModuleType

from kvlab.reference.files import import_file

OUTSIDE = "KVLAB_METHODS"
"""Environment variable that names modules and files with further methods, as ``PATH`` does."""

LIBRARIES = {"kvpress": "kvlab.fast.bridges.kvpress"}
"""Name before a colon → module whose ``method_of`` makes a method of the name after it: by name
alone, because nothing here imports PyTorch."""


def named() -> tuple[str, ...]:
    """Return the modules and files that the environment names; files by their whole path."""
    listed = filter(None, os.environ.get(OUTSIDE, "").split(os.pathsep))
    return tuple(str(Path(each).resolve()) if each.endswith(".py") else each for each in listed)


def import_bridge(library: str) -> ModuleType:
    """Import the bridge to a library; ValueError if something that it needs is not installed."""
    try:
        return importlib.import_module(LIBRARIES[library])
    except ModuleNotFoundError as error:
        needs = f"{library}:… needs {error.name}: pip install 'kvlab[fast,{library}]'"
        raise ValueError(needs) from error


def import_named(name: str) -> ModuleType:
    """Import a module or file; other files that are named can import a file by its name.

    Raises:
        ValueError: if that is not possible.
    """
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        file, known = Path(name), sys.modules.get(Path(name).stem)
        if known is not None and _is_of(file, getattr(known, "__file__", None)):
            return known
        return import_file(file, file.stem if _is_free(file) else f"kvlab_methods_{file.stem}")
    except Exception as error:  # whatever a user's module does wrong is bad input
        raise ValueError(f"{OUTSIDE}: {name} cannot be imported: {error}") from error


def _is_of(file: Path, path: str | None) -> bool:
    return path is not None and Path(path).resolve() == file


def _is_free(file: Path) -> bool:
    """Say whether no other module has the name of a file; folders without code do not count."""
    if not file.stem.isidentifier() or file.stem in sys.modules:
        return False
    found = find_spec(file.stem)
    return found is None or found.origin is None or _is_of(file, found.origin)


def source_hash() -> str:
    """Hash the source of what the environment names; empty if it names nothing.

    What a file imports from its own folder counts, and all files of a module's package.
    """
    contents = {path.read_bytes() for name in named() for path in _sources(name)}
    digests = sorted(hashlib.sha256(each).hexdigest() for each in contents)
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:24] if digests else ""


def _sources(name: str) -> list[Path]:
    file = Path(name)
    if not name.endswith(".py"):
        module = sys.modules[name.partition(".")[0]]
        if hasattr(module, "__path__"):
            return [path for folder in module.__path__ for path in Path(folder).rglob("*.py")]
        file = Path(str(module.__file__))
    installed = "site-packages" in file.parts
    finder = ModuleFinder([] if installed else [str(file.parent)])
    finder.run_script(str(file))
    files = (getattr(found, "__file__", None) for found in finder.modules.values())
    return [Path(each) for each in files if each]
