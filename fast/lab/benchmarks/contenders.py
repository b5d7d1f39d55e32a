"""Who takes part in the decoding benchmark: transformers itself, kvlab and kvpress."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvlab.fast import compress
from kvlab.fast.lab.benchmarks.workload import (
    Footprint,
    Run,
    Timing,
    footprint_of,
    full_cache,
    peak_footprint,
    timed,
)
from kvlab.reference.methods import takes_budget


@dataclass(frozen=True)
class Contender:
    """A cache of some library that a model generates with."""

    name: str
    """Its name in the result."""
    compresses: bool
    """Whether it evicts anything."""
    timing: Callable[[Run], Timing]
    """Generates once and says how long it took."""
    footprint: Callable[[Run], Footprint]
    """Returns the most that its cache held between two tokens of one generation."""


@dataclass(frozen=True)
class Setting:
    """What all contenders share."""

    model: Any
    entries: int
    """Entries that every compressed contender keeps, per head."""
    cpu_time: bool = False
    """Whether to measure the CPU time of the process, not the time on the clock."""


Opened = tuple[Any, Callable[[], Footprint]]
"""An empty cache, and a function that says what it holds."""


def in_this_process(
    name: str,
    compresses: bool,
    setting: Setting,
    opened: Callable[[], AbstractContextManager[Opened]],
) -> Contender:
    """Return a contender that generates here; ``opened`` makes a cache for one generation."""

    def timing(run: Run) -> Timing:
        with opened() as (cache, _):
            return timed(setting.model, run, cache, setting.cpu_time)

    def footprint(run: Run) -> Footprint:
        with opened() as (cache, read):
            return peak_footprint(setting.model, run, cache, read)

    return Contender(name, compresses, timing, footprint)


def stock(setting: Setting) -> Contender:
    """Return the full cache of transformers."""

    @contextmanager
    def opened() -> Iterator[Opened]:
        cache = full_cache(setting.model)
        yield cache, lambda: footprint_of(cache)

    return in_this_process("transformers full cache", False, setting, opened)


def kvlab(setting: Setting, method: str, block_size: int | None = None) -> Contender:
    """Return a method of this repository, which may read the prompt in blocks."""
    budget = setting.entries if takes_budget(method) else None

    @contextmanager
    def opened() -> Iterator[Opened]:
        with compress(setting.model, method, budget, block_size=block_size) as cache:

            def read() -> Footprint:
                entries = max((max(counts) for counts in cache.kept() if counts), default=0)
                return Footprint(entries, cache.memory().total)

            yield cache, read

    blocks = f" in blocks of {block_size}" if block_size else ""
    return in_this_process(f"kvlab {method}{blocks}", method != "full", setting, opened)


class KvpressWorker:
    """The process that measures kvpress; see ``kvpress_contender.py``.

    Args:
        python: interpreter of an environment with kvpress.
        device: as PyTorch names it.
        threads: threads of PyTorch.
        directory: directory of the model; by default the small one with random weights.

    Raises:
        RuntimeError: if the process does not start.
    """

    def __init__(self, python: Path, device: str, threads: int, directory: str = "") -> None:
        script = Path(__file__).with_name("kvpress_contender.py")
        self.process = subprocess.Popen(
            [python, script, device, str(threads), directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.versions: dict[str, str] = self._receive()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Have one generation measured.

        Raises:
            RuntimeError: if the process ended.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._receive()

    def close(self) -> None:
        """End the process."""
        self.process.communicate()

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"kvpress ended with code {self.process.wait()}; its error is above")
        return json.loads(line)


def kvpress(
    worker: KvpressWorker, setting: Setting, press: str | None = None, interval: int | None = None
) -> Contender:
    """Return a press of kvpress under its DecodingPress.

    Without a press it is transformers' full cache, in kvpress's environment.
    """
    about = {"press": press, "interval": interval, "entries": setting.entries}

    def ask(what: str, run: Run) -> dict[str, Any]:
        return worker.ask(ask=what, run=asdict(run), cpu_time=setting.cpu_time, **about)

    return Contender(
        f"kvpress {press} every {interval}" if press else "kvpress's transformers full cache",
        press is not None,
        lambda run: Timing(**ask("timing", run)),
        lambda run: Footprint(**ask("footprint", run)),
    )
