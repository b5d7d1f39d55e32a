"""What a result has to say about where it was measured."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def machine(device: str | None) -> dict[str, Any]:
    """Return processor, cores, memory; with a device of PyTorch's, its threads and the GPU, too."""
    found = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }
    if device is None:
        return found
    import torch  # what is measured without it says its machine without it

    return {
        **found,
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.startswith("cuda") else None,
    }


PACKAGES = ("kvlab", "torch", "transformers", "triton")


def versions(*packages: str) -> dict[str, str | None]:
    """Return the versions of Python and of packages, `PACKAGES` by default, and kvlab's commit."""
    found: dict[str, str | None] = {"python": platform.python_version(), "commit": _commit()}
    for name in packages or PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


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
