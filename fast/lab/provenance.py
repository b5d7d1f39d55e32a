"""What results depend on besides what was asked: files, source, versions and the machine."""

import hashlib
import json
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import kvlab.fast
import kvlab.reference
from kvlab.reference.methods import discover

PACKAGES = ("kvlab", "torch", "transformers", "triton")


def states(asked: Any) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and time of every file that is named, or lies in a folder that is."""
    if isinstance(asked, Mapping):
        asked = [*asked.values()]
    if isinstance(asked, str | Path):
        with suppress(OSError, ValueError):  # a text that cannot be a path
            path = Path(asked)
            for each in path.rglob("*") if path.is_dir() else (path,):
                if each.is_file():
                    yield str(each), (state := each.stat()).st_size, state.st_mtime_ns
    elif isinstance(asked, Iterable):
        for each in asked:
            yield from states(each)


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


@cache
def program() -> str:
    """Return a hash of the source of kvlab, of methods from outside, of versions and machine."""
    total = hashlib.sha256(json.dumps([versions(), discover(), platform.node()]).encode())
    for package in (kvlab.fast, kvlab.reference):
        for path in sorted(Path(str(package.__file__)).parent.rglob("*.*")):
            if path.suffix in (".py", ".mjs", ".toml"):
                total.update(path.read_bytes())
    return total.hexdigest()
