"""Who takes part in the benchmarks: transformers itself, kvlab, kvpress and deployed engines."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from transformers import DynamicCache

from kvlab.fast import compress
from kvlab.fast.lab import engines
from kvlab.fast.lab.benchmarks.workload import Outcome, Run, drawn, measure
from kvlab.fast.models import gguf_file
from kvlab.reference.methods import takes_budget


@dataclass(frozen=True)
class Contender:
    """A cache of some library that a model generates with."""

    name: str
    compresses: bool
    measured: Callable[[Run, bool], Outcome]
    """Generates once; told to watch, it says the most that the cache held between two tokens."""
    prompt: int | None = None
    """Tokens of its prompt; None: as many as the others read."""
    model: Any = None
    """What it runs, of transformers; None where an engine chooses the weights' number format."""


@dataclass(frozen=True)
class Setting:
    """What all contenders share."""

    model: Any
    entries: int | None
    """Entries that every compressed contender keeps, per head."""
    cpu_time: bool = False


def stock(setting: Setting) -> Contender:
    """Return the full cache of transformers."""

    def measured(run: Run, watched: bool) -> Outcome:
        cache = DynamicCache(config=setting.model.config)
        return measure(setting.model, run, cache, watched, setting.cpu_time)

    return Contender("transformers full cache", False, measured, model=setting.model)


def kvlab(setting: Setting, method: str, block_size: int | None = None) -> Contender:
    """Return a method of this repository, which may read the prompt in blocks."""
    budget = setting.entries if takes_budget(method) else None

    def measured(run: Run, watched: bool) -> Outcome:
        with compress(setting.model, method, budget, block_size=block_size) as cache:
            return measure(setting.model, run, cache, watched, setting.cpu_time)

    blocks = f" in blocks of {block_size}" if block_size else ""
    name = f"kvlab {method}{blocks}"
    return Contender(name, method != "full", measured, model=setting.model)


class KvpressWorker:
    """The process of ``kvpress_contender.py``; it takes a device, threads, a model's directory."""

    def __init__(self, python: Path, *arguments: str) -> None:
        script = Path(__file__).with_name("kvpress_contender.py")
        command = [python, script, *arguments]
        self.process = Popen(command, text=True, stdin=PIPE, stdout=PIPE)
        self.versions: dict[str, str] = self._receive()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Have one generation measured."""
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"kvpress ended with code {self.process.wait()}; its error is above")
        return json.loads(line)


def kvpress(
    worker: KvpressWorker, setting: Setting, press: str | None = None, interval: int | None = None
) -> Contender:
    """Return a press under kvpress's DecodingPress; without one, its full cache of transformers."""
    about = {"press": press, "interval": interval, "entries": setting.entries}
    about |= {"cpu_time": setting.cpu_time}

    def measured(run: Run, watched: bool) -> Outcome:
        return Outcome(**worker.ask(run=asdict(run), watched=watched, **about))

    name = f"kvpress {press} every {interval}" if press else "kvpress's transformers full cache"
    return Contender(name, press is not None, measured, model=setting.model)


def engine(
    name: str, about: str, settings: Mapping[str, Any], cpu_time: bool, exact: bool = True
) -> Contender:
    """Return an engine that loads SmolLM2 before the clock starts; ``exact``: in float32."""

    def measured(run: Run, watched: bool) -> Outcome:
        asked = {"weights": str(gguf_file("smollm2")), "prompts": drawn(run).tolist()}
        asked |= {"settings": settings, "tokens": run.tokens, "timed": True, "exact": exact}
        found = engines.generate(name, asked)
        cpu, wall = zip(*found["times"], strict=True)
        start, first, last = cpu if cpu_time else wall
        spent = first - start, last - first, run.tokens
        return Outcome(*spent, bytes=found["bytes"], wall=wall[2] - wall[1])

    return Contender(f"{name} {about}", True, measured)
