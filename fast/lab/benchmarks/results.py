"""Results of benchmarks: where they were measured, and writing them as JSON."""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.terminal import print_line

Result = Mapping[str, Any]
Out = Annotated[Path | None, typer.Option(help="JSON file to write; default: stdout.")]
PACKAGES = ("kvlab", "torch", "transformers", "triton")


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


def versions(*packages: str) -> dict[str, str | None]:
    """Return the versions of Python and of packages, `PACKAGES` by default, and kvlab's commit."""
    found = {"python": platform.python_version(), "commit": None}
    if git := shutil.which("git"):
        describe = [git, "describe", "--always", "--dirty"]
        commit = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True)
        found["commit"] = commit.stdout.strip() or None
    for name in packages or PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def gpu_or_small(benchmark: str, small: bool) -> str:
    """Return the device of a benchmark that needs a GPU; a small case may run on any device."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if small:
        return "cpu"
    raise SystemExit(f"{benchmark}: this benchmark needs a GPU; --small shows that it runs")
