"""Who takes part in the decoding benchmark: transformers itself, kvlab and kvpress."""

import json
import subprocess
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvlab.fast import compress
from kvlab.fast.lab.benchmarks.workload import (
    ENTRIES,
    Footprint,
    Run,
    footprint_of,
    full_cache,
    peak_footprint,
    tokens_per_second,
)


class Contender(ABC):
    """Somebody who generates."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the result calls it."""

    @property
    @abstractmethod
    def compresses(self) -> bool:
        """Whether it evicts anything."""

    @abstractmethod
    def speed(self, run: Run, with_prompt: bool) -> float:
        """Return tokens per second of one generation."""

    @abstractmethod
    def footprint(self, run: Run) -> Footprint:
        """Return the most that its cache held between two tokens of one generation."""


@dataclass(frozen=True)
class Stock(Contender):
    """The full cache of transformers."""

    model: Any

    @property
    def name(self) -> str:
        """What the result calls it."""
        return "transformers full cache"

    @property
    def compresses(self) -> bool:
        """Whether it evicts anything."""
        return False

    def speed(self, run: Run, with_prompt: bool) -> float:
        """Return tokens per second of one generation."""
        return tokens_per_second(self.model, run, full_cache(self.model), with_prompt)

    def footprint(self, run: Run) -> Footprint:
        """Return the most that its cache held between two tokens of one generation."""
        cache = full_cache(self.model)
        return peak_footprint(self.model, run, cache, lambda: footprint_of(cache))


@dataclass(frozen=True)
class Kvlab(Contender):
    """A method of this repository."""

    model: Any
    method: str

    @property
    def name(self) -> str:
        """What the result calls it."""
        return f"kvlab {self.method}"

    @property
    def compresses(self) -> bool:
        """Whether it evicts anything."""
        return self.method != "full"

    @property
    def budget(self) -> int | None:
        """Entries to keep."""
        return ENTRIES if self.compresses else None

    def speed(self, run: Run, with_prompt: bool) -> float:
        """Return tokens per second of one generation."""
        with compress(self.model, self.method, self.budget) as cache:
            return tokens_per_second(self.model, run, cache, with_prompt)

    def footprint(self, run: Run) -> Footprint:
        """Return the most that its cache held between two tokens of one generation."""
        with compress(self.model, self.method, self.budget) as cache:

            def read() -> Footprint:
                entries = max((max(counts) for counts in cache.kept() if counts), default=0)
                return Footprint(entries, cache.memory().total)

            return peak_footprint(self.model, run, cache, read)


class KvpressWorker:
    """The process that measures kvpress; see ``kvpress_contender.py``.

    Args:
        python: interpreter of an environment with kvpress.
        device: as PyTorch names it.
        threads: of PyTorch.

    Raises:
        RuntimeError: if the process does not start.
    """

    def __init__(self, python: Path, device: str, threads: int) -> None:
        script = Path(__file__).with_name("kvpress_contender.py")
        self.process = subprocess.Popen(
            [python, script, device, str(threads)],
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


@dataclass(frozen=True)
class Kvpress(Contender):
    """A press of kvpress under its DecodingPress; without one, the full cache beside it."""

    worker: KvpressWorker
    press: str | None = None
    interval: int | None = None

    @property
    def name(self) -> str:
        """What the result calls it."""
        if self.press is None:
            return "kvpress's transformers full cache"
        return f"kvpress {self.press} every {self.interval}"

    @property
    def compresses(self) -> bool:
        """Whether it evicts anything."""
        return self.press is not None

    def speed(self, run: Run, with_prompt: bool) -> float:
        """Return tokens per second of one generation."""
        return self._ask("speed", run, with_prompt)["speed"]

    def footprint(self, run: Run) -> Footprint:
        """Return the most that its cache held between two tokens of one generation."""
        return Footprint(**self._ask("footprint", run, with_prompt=True))

    def _ask(self, what: str, run: Run, with_prompt: bool) -> dict[str, Any]:
        return self.worker.ask(
            ask=what,
            press=self.press,
            interval=self.interval,
            run=asdict(run),
            with_prompt=with_prompt,
        )
