"""Writing files: completely or not at all, and with errors that name the file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

UNFINISHED = ".unfinished"


def write_text(path: Path, text: str) -> None:
    """Write a file in UTF-8; an OSError names the file."""
    with named(path):
        path.write_text(text, encoding="utf-8")


@contextmanager
def write_completely(path: Path) -> Iterator[BinaryIO]:
    """Write a file so that it is there completely or not at all, even after a power cut.

    An OSError names the file.
    """
    unfinished = path.with_name(f"{path.name}.{uuid4().hex[:8]}{UNFINISHED}")
    with named(path), unfinished.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def clear_unfinished(directory: Path) -> None:
    """Make a directory if there is none, and remove what killed processes left in it."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.glob(f"*{UNFINISHED}"):
        path.unlink()


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Name a file in an OSError that does not name it: a full disk is not reported with a name."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
