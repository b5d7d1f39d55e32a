"""Modules beside the site's pages and the notebooks, found as MkDocs and Jupyter find them."""

import importlib
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDERS = [str(ROOT / "docs" / "hooks"), str(ROOT / "notebooks")]


def module(name: str) -> Any:
    """Return a module of ``docs/hooks`` or ``notebooks``; these import each other by bare names."""
    sys.path[:0] = FOLDERS
    try:
        return importlib.import_module(name)
    finally:
        del sys.path[: len(FOLDERS)]
