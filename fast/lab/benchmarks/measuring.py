"""Measurements of a benchmark, kept as they come: one that was stopped goes on where it was."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from kvlab.fast.lab.benchmarks.results import machine, versions
from kvlab.fast.lab.steps import Steps
from kvlab.fast.lab.terminal import print_aside, refuse

Once = Callable[[str, Callable[[], Any]], Any]


@contextmanager
def measuring(
    out: Path | None, asked: Mapping[str, Any], device: str, total: int
) -> Iterator[Once]:
    """Keep measurements beside a result until it is written, which is when the context ends.

    What another command, machine or version measured there is refused. ``asked`` is what the
    benchmark was asked for, ``total`` the number of measurements; without ``out`` nothing is kept.
    """
    path = None if out is None else out.with_name(f"{out.name}.part")
    steps, numbers = Steps(path), count(1)
    about = {"asked": dict(asked), "machine": machine(device), "versions": versions()}
    known = steps.do("about", lambda: about)
    if other := [name for name in about if known[name] != about[name]]:
        refuse(
            f"{path} holds what was measured with {other[0]} = {known[other[0]]}, and this is "
            f"{about[other[0]]}: remove the file, or give another --out"
        )

    def once(name: str, measure: Callable[[], Any]) -> Any:
        number, began = next(numbers), time.perf_counter()
        if name not in steps.found:
            steps.keep(name, measure())
            print_aside(f"{number} of {total}: {name}, {time.perf_counter() - began:.1f} s")
        return steps.found[name]

    try:
        yield once
    except KeyboardInterrupt:
        held = len(steps.found) - 1
        kept = f"{path} holds {held}: the same command goes on" if path else "none kept"
        print_aside(f"stopped after {held} of {total} measurements; {kept}")
        raise
    if path is not None:
        path.unlink()
