"""Decoding speed against the full cache and against kvpress.

    python -m kvlab.fast.benchmarks.decode --kvpress /tmp/kvpress/bin/python --out result.json

All contenders are measured in turn, several times over, so that a change of the machine's speed
meets all of them. ``kvpress_contender.py`` says how to make the environment of kvpress.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import Progress

from kvlab.fast import compress
from kvlab.fast.benchmarks.machine import machine, versions
from kvlab.fast.benchmarks.workload import (
    CONSTANT,
    ENTRIES,
    FULL_AT_SAME_SIZE,
    WHOLE,
    Run,
    tiny_llama,
    tokens_per_second,
)
from kvlab.fast.commands.terminal import console, progress

SCHEMA = 1
PER_STEP = (
    "streaming_llm",
    "h2o",
    "tova",
    "raas@pin_prompt=false",
    "caote:h2o",
    "caote:tova",
    "fast_caote:h2o",
    "ahakv",
)
LAGGED = "lazy_eviction@window=32"
KVPRESS = {
    "whole": (("observed_attention", 32), ("snapkv", 32), ("tova", 32)),
    "constant": (("tova", 1), ("observed_attention", 1)),
}
"""Presses at the same interval. Nearest to LazyEviction and H2O is the one that observes attention,
in eager mode; the others look at the last queries alone, and at nothing in between."""


@dataclass(frozen=True)
class Contender:
    """Somebody who generates; ``measure`` returns tokens per second."""

    name: str
    run: Run
    measure: Callable[[], float]


@dataclass
class Outcome:
    """What was measured of one contender."""

    name: str
    run: Run
    tokens_per_second: list[float]

    @property
    def median(self) -> float:
        """Median over the repeats."""
        return statistics.median(self.tokens_per_second)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "median": self.median}


def contenders(
    model: Any, part: str, device: str, kvpress: Path | None, shorter: int
) -> Iterator[Contender]:
    """Yield who takes part; ``shorter`` divides the tokens to write."""
    whole = part == "whole"
    full, compressed = (WHOLE, WHOLE) if whole else (FULL_AT_SAME_SIZE, CONSTANT)
    full, compressed = (Run(r.prompt, r.tokens // shorter) for r in (full, compressed))

    def stock() -> float:
        return tokens_per_second(model.generate, full, whole, device)

    def kvlab(spec: str) -> Callable[[], float]:
        def measure() -> float:
            budget = None if spec == "full" else ENTRIES
            with compress(model, spec, budget) as cache:

                def generate(*args: Any, **options: Any) -> Any:
                    return model.generate(*args, past_key_values=cache, **options)

                run = full if spec == "full" else compressed
                return tokens_per_second(generate, run, whole, device)

        return measure

    yield Contender("transformers full cache", full, stock)
    yield Contender("kvlab full", full, kvlab("full"))
    for spec in (LAGGED,) if whole else (*PER_STEP, LAGGED):
        yield Contender(f"kvlab {spec}", compressed, kvlab(spec))
    for press, interval in KVPRESS[part] if kvpress else ():
        wanted = {
            "press": press,
            "interval": interval,
            "run": asdict(compressed),
            "whole": whole,
            "threads": torch.get_num_threads(),
            "device": device,
            "repeats": 1,
        }
        name = f"kvpress {press} every {interval}"
        yield Contender(name, compressed, lambda w=wanted: elsewhere(kvpress, w))


def elsewhere(python: Path | None, wanted: dict[str, Any]) -> float:
    """Measure kvpress in its own environment."""
    script = Path(__file__).with_name("kvpress_contender.py")
    command = [str(python), str(script), json.dumps(wanted)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise RuntimeError(f"kvpress failed: {found.stderr.strip().splitlines()[-1]}")
    return json.loads(found.stdout.splitlines()[-1])["tokens_per_second"][0]


def measure(several: list[Contender], repeats: int, bar: Progress, part: str) -> list[Outcome]:
    """Measure all in turn, ``repeats`` times, after one round that is not counted."""
    outcomes = [Outcome(contender.name, contender.run, []) for contender in several]
    task = bar.add_task(part, total=(repeats + 1) * len(several))
    for turn in range(repeats + 1):
        for contender, outcome in zip(several, outcomes, strict=True):
            if turn or contender.run.tokens < WHOLE.tokens:
                speed = contender.measure()
                if turn:
                    outcome.tokens_per_second.append(speed)
            bar.advance(task)
    return outcomes


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    kvpress: Annotated[
        Path | None, typer.Option(help="Python of an environment with kvpress 0.5.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Counted rounds.")] = 5,
    threads: Annotated[int, typer.Option(help="Threads of PyTorch.")] = 1,
    device: Annotated[str, typer.Option(help="As PyTorch names it.")] = "cpu",
    shorter: Annotated[int, typer.Option(help="Divide the tokens to write, to try it out.")] = 1,
) -> None:
    """Measure decoding speed."""
    torch.set_num_threads(threads)
    model = tiny_llama(device)
    parts = {}
    with progress() as bar:
        for part in ("constant", "whole"):
            several = list(contenders(model, part, device, kvpress, shorter))
            parts[part] = measure(several, repeats if part == "constant" else 3, bar, part)
    result = {
        "schema": SCHEMA,
        "machine": machine(device),
        "versions": versions(),
        "kvpress": "not measured: no environment given" if kvpress is None else "0.5",
        "entries": ENTRIES,
        "parts": {part: [o.to_json() for o in outcomes] for part, outcomes in parts.items()},
    }
    for part, outcomes in parts.items():
        console.print(f"{part}: tokens/s, median (lowest to highest), share of the full cache's")
        for o in outcomes:
            low, high = min(o.tokens_per_second), max(o.tokens_per_second)
            share = o.median / outcomes[0].median
            console.print(
                f"  {o.name:34s} {o.median:7.0f} ({low:.0f} to {high:.0f})  {share:5.0%}",
                highlight=False,
            )
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(typer.run(main))
