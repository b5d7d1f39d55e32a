"""Results of benchmarks as JSON; those of one that was stopped are kept, and it goes on there."""

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.steps import Steps, versions
from kvlab.fast.lab.terminal import print_aside, print_line, refuse

Result = Mapping[str, Any]
Once = Callable[[str, Callable[[], Any]], Any]
Out = Annotated[Path | None, typer.Option(help="JSON file to write; default: stdout.")]


def write(schema: int, device: str, found: Result, path: Path | None) -> None:
    """Write what was found with the command, the machine and the versions of the packages."""
    module = getattr(sys.modules["__main__"].__spec__, "name", sys.argv[0])
    result = {
        "schema": schema,
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
        "machine": machine(device),
        "versions": versions(),
        **found,
    }
    text = json.dumps(result, indent=1)
    if path is None:
        print_line(text)
    else:
        write_text(path, f"{text}\n")


def machine(device: str) -> dict[str, Any]:
    """Return processor, memory, threads and GPU of this machine."""
    import torch

    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    named = [line.partition(":")[2] for line in info.splitlines() if line.startswith("model name")]
    return {
        "processor": named[0].strip() if named else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.startswith("cuda") else None,
    }


def gpu_or_small(benchmark: str, small: bool) -> str:
    """Return the device of a benchmark that needs a GPU; a small case may run on any device."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if small:
        return "cpu"
    raise SystemExit(f"{benchmark}: this benchmark needs a GPU; --small shows that it runs")


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
