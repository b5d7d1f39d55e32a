"""What a result has to say about where it was measured."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("kvlab", "torch", "transformers", "triton")


def machine(device: str | None) -> dict[str, Any]:
    """Return processor, cores and memory.

    Args:
        device: as PyTorch names it: its GPU and PyTorch's threads are returned, too; None for what
            is measured without PyTorch.
    """
    found = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }
    if device is None:
        return found
    import torch

    return {
        **found,
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.startswith("cuda") else None,
    }


def versions(*packages: str) -> dict[str, str | None]:
    """Return the versions of Python and of packages, `PACKAGES` by default, and kvlab's commit."""
    found: dict[str, str | None] = {"python": platform.python_version(), "commit": _commit()}
    for name in packages or PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def gpu_or_small(benchmark: str, small: bool) -> str:
    """Return the device of a benchmark that needs a GPU; a small case may run on any device.

    Raises:
        SystemExit: if there is no GPU, and the case is not small.
    """
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if small:
        return "cpu"
    raise SystemExit(f"{benchmark}: this benchmark needs a GPU; --small shows that it runs")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    root = Path(__file__).resolve().parent
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
