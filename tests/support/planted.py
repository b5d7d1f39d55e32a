"""Plant wrong texts in correct files: what a check is worth shows when something is wrong.

A table names a file's right text, which occurs there exactly once, and a wrong text for its place.
"""

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

Changes = Sequence[tuple[str, str]]
"""Right and wrong texts of one file."""


def changed(file: Path, changes: Changes) -> str:
    """Return a file's text with every right text replaced.

    Raises:
        AssertionError: if a right text does not occur exactly once, or the wrong text is the same.
    """
    text = file.read_text(encoding="utf-8")
    for right, wrong in changes:
        assert text.count(right) == 1, (file.name, right, text.count(right))
        assert right != wrong, (file.name, right)
        text = text.replace(right, wrong)
    return text


@contextmanager
def planted(name: str, changes: Changes) -> Iterator[ModuleType]:
    """Run a module's changed source as a fresh module of its own name.

    The modules that it imports are the real ones; it takes the place of the real module in
    `sys.modules` only inside the ``with`` block, and its calls are not type-checked.
    """
    real = importlib.import_module(name)
    assert real.__file__ is not None
    source = changed(Path(real.__file__), changes)
    module = ModuleType(name)
    module.__dict__.update(__file__=real.__file__, __package__=real.__package__)
    sys.modules[name] = module
    try:
        exec(compile(source, f"<planted in {real.__file__}>", "exec"), module.__dict__)
        yield module
    finally:
        sys.modules[name] = real
