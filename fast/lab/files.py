"""Data beside the code; writing files completely or not at all, with errors that name a file."""

import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4


@cache
def read_data(name: str) -> dict[str, Any]:
    """Return a TOML file of the lab."""
    return tomllib.loads(files("kvlab.fast.lab").joinpath(name).read_text(encoding="utf-8"))


def write_text(path: Path, text: str) -> None:
    """Write a file in UTF-8, completely or not at all; an OSError names the file."""
    with write_completely(path.resolve()) as file:
        file.write(text.encode())


@contextmanager
def folder_of(path: Path) -> Iterator[None]:
    """Make the folders of a file; those that are still empty in the end are taken back."""
    missing = [each for each in path.parents if not each.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for each in missing:
            with suppress(OSError):  # it holds something
                each.rmdir()


@contextmanager
def write_completely(path: Path) -> Iterator[BinaryIO]:
    """Write a file completely or not at all, even after a power cut; an OSError names the file."""
    unfinished = path.with_name(f"{path.name}.{uuid4().hex[:8]}.unfinished")
    with named(path), folder_of(path):
        try:
            with unfinished.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Name a file in an OSError that does not name it: a full disk is not reported with a name."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
