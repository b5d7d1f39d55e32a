"""Methods that live outside the package, in files of their own, with state of their own."""

import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

from kvlab.reference import methods
from kvlab.reference.outside import OUTSIDE

FILES = Path(__file__).parents[2] / "docs" / "examples" / "own_method"
SOURCE, PYRAMID = ((FILES / f"{name}.py").read_text("utf-8") for name in ("looks", "pyramid"))


def write_files(folder):
    """Copy the PyTorch implementations and the two methods into a folder."""
    names = ("fast_looks", "pyramid", "looks")
    return [Path(shutil.copy(FILES / f"{name}.py", folder)) for name in names]


@contextmanager
def methods_named(*named):
    """Let the registry find these modules and files besides its own, and forget them again."""
    registered, before = dict(methods._registered), os.environ.get(OUTSIDE)
    os.environ[OUTSIDE] = os.pathsep.join(map(str, named))
    methods.discover_again()
    try:
        yield
    finally:
        os.environ.pop(OUTSIDE)
        if before is not None:
            os.environ[OUTSIDE] = before
        methods._registered.clear()
        methods._registered.update(registered)
        methods.discover_again()
        for each in named:
            sys.modules.pop(Path(each).stem, None)
