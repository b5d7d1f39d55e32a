"""Long work that may be stopped at any moment: what is done is kept, and the next run goes on.

The results of steps are kept one by one in a file in kvlab's cache, which is named by a hash of
all that they depend on. The same command reads it, does what is missing, and removes it at its end.
"""

import hashlib
import json
import pickle
import platform
import shutil
import signal
import subprocess
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import kvlab.fast
import kvlab.reference
from kvlab.fast.lab.tables import counted
from kvlab.fast.lab.terminal import print_aside
from kvlab.fast.models import cache_directory
from kvlab.reference.methods import discover

T = TypeVar("T")
PACKAGES = ("kvlab", "torch", "transformers", "triton")


class Steps:
    """What was found in the steps of a work, by the step; each is kept as soon as it is there."""

    def __init__(self, path: Path | None = None) -> None:
        """Read what a file holds; without one, nothing outlives the process."""
        self.path = path
        self.found: dict[Hashable, Any] = {} if path is None else _read(path)

    def keep(self, step: Hashable, found: Any) -> None:
        """Keep what was found in a step."""
        self.found[step] = found
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(pickle.dumps((step, found)))

    def do(self, step: Hashable, work: Callable[[], T]) -> T:
        """Return what a step finds; it is done only if it was not done before."""
        if step not in self.found:
            self.keep(step, work())
        return self.found[step]


def _read(path: Path) -> dict[Hashable, Any]:
    """Return whole steps; what a killed process wrote after them is cut off."""
    found: dict[Hashable, Any] = {}
    if path.is_file():
        with path.open("r+b") as file:
            whole = 0
            try:
                while True:
                    step, value = pickle.load(file)
                    found[step], whole = value, file.tell()
            except Exception:  # the end, or half a step, which fails in many ways
                file.truncate(whole)
    return found


@contextmanager
def kept_steps(work: str, **asked: Any) -> Iterator[Steps]:
    """Keep the steps of a command until all are done.

    ``asked`` is all that the results depend on, besides kvlab, methods from outside, the versions
    of what computes, and the machine. What it names files or folders by stands for what they hold.
    """
    given = [_program(), asked, sorted(_states(asked))]
    name = hashlib.sha256(json.dumps(given, default=str).encode()).hexdigest()[:16]
    steps = Steps(cache_directory() / "unfinished" / f"{work}-{name}")
    if steps.found:
        count = counted(len(steps.found), "step")
        print_aside(f"going on after {count} in {steps.path}; delete it to begin anew")
    try:
        yield steps
    except KeyboardInterrupt as stop:
        if steps.found:
            count = counted(len(steps.found), "step")
            stop.add_note(f"{count} kept in {steps.path}: the same command goes on from there")
        raise
    assert steps.path is not None
    steps.path.unlink(missing_ok=True)


def _states(asked: Any) -> Iterator[tuple[str, int, int]]:
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
            yield from _states(each)


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
def _program() -> str:
    """Return a hash of the source of kvlab, of methods from outside, of versions and machine."""
    total = hashlib.sha256(json.dumps([versions(), discover(), platform.node()]).encode())
    for package in (kvlab.fast, kvlab.reference):
        for path in sorted(Path(str(package.__file__)).parent.rglob("*.*")):
            if path.suffix in (".py", ".mjs", ".toml"):
                total.update(path.read_bytes())
    return total.hexdigest()


def stop_with(note: str) -> KeyboardInterrupt:
    """Return what ends a command that Ctrl-C has stopped, and says what there is."""
    stop = KeyboardInterrupt()
    stop.add_note(note)
    return stop


@contextmanager
def until_stopped(what: str) -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C only be noted, so that ``what`` ends well; the second one is as ever."""
    pressed = []

    def note(number: int, frame: Any) -> None:
        signal.signal(number, before)
        pressed.append(number)
        print_aside(f"stopping after this {what}; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
