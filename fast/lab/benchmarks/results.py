"""Results of benchmarks: made of rounds, written as JSON, read again."""

import json
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from kvlab.fast.lab.benchmarks.machine import machine, versions
from kvlab.fast.lab.files import write_text

RESULTS = Path(__file__).parent / "results"

Result = Mapping[str, Any]
Out = Annotated[Path | None, typer.Option(help="JSON file to write.")]
T = TypeVar("T")


def shuffled(items: Iterable[T], turn: int) -> list[T]:
    """Return the items in an order of their own for every round, the same on every machine."""
    listed = list(items)
    return random.Random(turn).sample(listed, len(listed))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, lowest and highest of the values of all rounds."""
    return {
        "median": statistics.median(values),
        "lowest": min(values),
        "highest": max(values),
    }


def result_of(schema: int, device: str | None, found: Result) -> dict[str, Any]:
    """Return what was found with the machine and the versions of the packages."""
    return {"schema": schema, "machine": machine(device), "versions": versions(), **found}


def write(result: Result, path: Path | None) -> None:
    """Write a result as JSON, if a file was asked for.

    Raises:
        OSError: if that fails.
    """
    if path is not None:
        write_text(path, json.dumps(result, indent=1) + "\n")


def read(path: Path) -> Result:
    """Read a result.

    Raises:
        ValueError: if the file is no JSON object, or does not say where it was measured.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} must hold a JSON object")
    for name in ("machine", "versions"):
        if not isinstance(found.get(name), dict):
            raise ValueError(f"{path.name} must say its {name!r}, as an object")
    return found


def gpu_of(result: Result) -> str | None:
    """Return the name of the GPU that was measured, if one was."""
    return result["machine"].get("gpu")


def result_files(directory: Path = RESULTS) -> list[Path]:
    """Return the files of results, those of GPUs first, then by name."""
    return sorted(directory.glob("*.json"), key=lambda path: (not gpu_of(read(path)), path.name))
