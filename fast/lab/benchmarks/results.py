"""Results of benchmarks: made of rounds, written as JSON, read again."""

import json
import random
import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from kvlab.fast.lab.benchmarks.machine import machine, versions
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.terminal import print_line

Result = Mapping[str, Any]
Out = Annotated[Path | None, typer.Option(help="JSON file to write; default: stdout.")]
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
    """Return what was found with the command, the machine and the versions of the packages."""
    module = getattr(sys.modules["__main__"].__spec__, "name", sys.argv[0])
    return {
        "schema": schema,
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
        "machine": machine(device),
        "versions": versions(),
        **found,
    }


def write(result: Result, path: Path | None) -> None:
    """Write a result as JSON: to a file, or to stdout if none was asked for.

    Raises:
        OSError: if that fails.
    """
    text = json.dumps(result, indent=1)
    if path is None:
        print_line(text)
    else:
        write_text(path, f"{text}\n")
