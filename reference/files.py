"""What is read from files: data beside the code, and Python files that users name."""

import importlib.util
import re
import sys
import tomllib
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from kvlab.reference.notation import Array

SPECIFICATION = re.compile(r"\w+(?::\w+)?@\w+=[\w.]+(?:,\w+=[\w.]+)*|\w+:\w+")
"""``name@option=value,...``, or a wrapper and its base."""


@dataclass(frozen=True)
class Divergence:
    """One point on which the paper, its authors' code and popular re-implementations differ."""

    topic: str
    paper: str
    default: str
    """What kvlab does."""
    elsewhere: str = "no code"
    """What the authors' code and re-implementations do."""
    option: str = "none"
    """The options, in registry syntax, that give the other interpretations; or words."""

    @property
    def specifications(self) -> tuple[str, ...]:
        """The options that can be typed as they stand."""
        return tuple(SPECIFICATION.findall(self.option))


def divergences_in(
    package: Literal["methods", "precisions"],
) -> Mapping[str, tuple[Divergence, ...]]:
    """Return what ``divergences.toml`` of a package says, by the name of the file it is about."""
    data = read_data(f"{package}/divergences.toml")
    return {name: tuple(Divergence(**each) for each in found) for name, found in data.items()}


def printed_tables(paper: str) -> dict[str, Any]:
    """Return the tables that a paper prints, by the name that ``printed.toml`` gives them."""
    return read_data("printed.toml")[paper]


@cache
def read_data(path: str) -> dict[str, Any]:
    """Read a file of TOML beside the code, by its path below ``reference/``."""
    return tomllib.loads((files("kvlab.reference") / path).read_text(encoding="utf-8"))


@cache
def read_statistics(path: str) -> Mapping[str, Array]:
    """Read a file of statistics, once; ValueError if there is none."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"statistics = {path!r} cannot be read: {error}") from None


@cache
def query_statistics(path: str, name: str, layers: int, heads: int, d: int) -> Array:
    """Return what ``kvlab trace --statistics`` wrote of a model's queries before their rotation.

    ``mean`` and ``length``, the mean length of the pair of channels that is rotated together, are
    ``[layers, heads, d]``, ``covariance`` is ``[layers, heads, d, d]``.

    Raises:
        ValueError: if there is no such file, or it is of a model of other sizes.
    """
    found = read_statistics(path).get(name, np.zeros(0)).astype(float)
    if found.shape[:3] != (layers, heads, d):
        raise ValueError(
            f"statistics = {path!r} must be of this model, with {layers} layers, {heads} query "
            f"heads and {d} channels: {name} has the shape {found.shape}"
        )
    return found


def import_file(file: Path, name: str) -> ModuleType:
    """Import a Python file as the module ``name``; its own directory can be imported from."""
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
