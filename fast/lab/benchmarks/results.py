"""Runs benchmarks: what is measured is kept, and all write one form of JSON.

A result names the benchmark, its command, machine and versions, its ``parameters``, what it found
``about`` all rows, and the rows of each of its ``parts``.
"""

import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from kvlab.fast.lab import terminal
from kvlab.fast.lab.benchmarks.noted import configurations
from kvlab.fast.lab.described import described
from kvlab.fast.lab.files import read_data, write_text
from kvlab.fast.lab.loop import kept, run_all, tell_of_older
from kvlab.fast.lab.provenance import versions
from kvlab.fast.lab.terminal import print_line, progress_bar

SCHEMA = 5
Result = Mapping[str, Any]
Parts = Mapping[str, Sequence[Any]]
Measure = Callable[..., dict[str, Any]]
"""Takes steps, and returns what they measured by their ids; ``kind`` is as in `run_all`."""


def run_benchmark(
    name: str,
    device: str,
    parameters: Mapping[str, Any],
    about: Mapping[str, Any],
    measured: Callable[[Measure], Parts],
) -> None:
    """Write what is ``measured`` of each part, with the command, the machine and the versions.

    Measurements are kept until they are written, so that the same command goes on where it was
    stopped. ``measured`` may add to what is known ``about`` all rows. ``parameters`` are the
    options of the command; its ``out`` is the file, None for stdout.
    """
    asked = dict(parameters)
    out = asked.pop("out")
    if out is not None:
        tell_of_older(out.parent.glob(f"{out.name}.part"))
    module = getattr(sys.modules["__main__"].__spec__, "name", sys.argv[0])
    result = {
        "schema": SCHEMA,
        "benchmark": name,
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
        "machine": machine(device),
        "versions": versions(),
        "parameters": asked,
    }
    given = {"asked": [asked, about], "machine": result["machine"]}
    with progress_bar() as progress, kept(name, **given) as store:
        parts = measured(partial(run_all, store=store, progress=progress))
        result |= {"configurations": configurations(), "about": about, "parts": parts}
        text = json.dumps(result, indent=1, default=str)
        if out is not None:
            write_text(out, f"{text}\n")
    if out is None:
        print_line(text)


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


def run(main: Callable[..., None], name: str) -> NoReturn:
    """Run a benchmark as a command, whose options are those of ``benchmarks.toml``."""
    said = read_data("benchmarks/benchmarks.toml")["options"]
    terminal.run(described(main, said["every"] | said[name]))
