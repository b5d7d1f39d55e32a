"""Memory of a long generation under a budget.

python -m kvlab.fast.lab.benchmarks.memory --method h2o --out result.json
"""

import json
import resource
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from kvlab.fast import compress
from kvlab.fast.lab.benchmarks.machine import machine, versions
from kvlab.fast.lab.benchmarks.workload import ENTRIES, Run, generate, tiny_llama
from kvlab.fast.lab.commands.terminal import console, progress

SCHEMA = 1
SETTLED = 2000
"""Tokens after which memory has to be flat."""


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


class Meter:
    """Notes the resident memory every so many tokens; taken as ``streamer``."""

    def __init__(self, every: int, advance: Any) -> None:
        self.every, self.advance = every, advance
        self.seen, self.readings = 0, {}

    def put(self, value: Any) -> None:
        """Take in the prompt, then every token."""
        self.seen += 1
        self.advance()
        if self.seen % self.every == 0:
            self.readings[self.seen] = resident_bytes()

    def end(self) -> None:
        """Nothing more will come."""


def growth(readings: dict[int, int], after: int = SETTLED) -> int:
    """Bytes by which memory ever exceeded its first reading at ``after`` tokens or later."""
    settled = [reading for token, reading in readings.items() if token >= after]
    if not settled:
        raise ValueError(f"no reading after {after} tokens")
    return max(settled) - settled[0]


def main(
    method: Annotated[str, typer.Option(help="Registry syntax.")] = "lazy_eviction@window=32",
    tokens: Annotated[int, typer.Option(help="Tokens to write.")] = 20_000,
    every: Annotated[int, typer.Option(help="Tokens between two readings.")] = 500,
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Generate under a budget of 256 entries and read the resident memory."""
    torch.set_num_threads(1)
    model = tiny_llama()
    with progress() as bar, compress(model, method, budget=ENTRIES) as cache:
        task = bar.add_task(method, total=tokens)
        meter = Meter(every, lambda: bar.advance(task))
        generate(model, Run(64, tokens), cache, meter)
        held, kept = cache.memory().total, cache.kept()[0][0]
    result = {
        "schema": SCHEMA,
        "machine": machine("cpu"),
        "versions": versions(),
        "method": method,
        "entries": ENTRIES,
        "tokens": tokens,
        "kept": kept,
        "cache_bytes": held,
        "resident_bytes": meter.readings,
        "growth_bytes": growth(meter.readings, min(SETTLED, tokens // 2)),
    }
    console.print(f"{method}: grew by {result['growth_bytes'] / 2**20:.1f} MiB, holds {held} bytes")
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(typer.run(main))
