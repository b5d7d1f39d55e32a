"""Writing files so that what goes wrong says where."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a file in UTF-8.

    Raises:
        OSError: if that fails; it names the file.
    """
    with named(path):
        path.write_text(text, encoding="utf-8")


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Name a file in errors that do not: where a disk is full, only opening a file tells its name.

    Raises:
        OSError: what was raised within, with the name.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
