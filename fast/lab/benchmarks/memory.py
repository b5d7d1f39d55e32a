"""Memory of a long generation under a budget.

python -m kvlab.fast.lab.benchmarks.memory --method h2o --out result.json
"""

import resource
import sys
from itertools import count
from pathlib import Path
from typing import Annotated

import torch
import typer

from kvlab.fast import compress
from kvlab.fast.lab.benchmarks.results import Out, result_of, write
from kvlab.fast.lab.benchmarks.workload import ENTRIES, Run, Watcher, generate, tiny_llama
from kvlab.fast.lab.terminal import progress

SCHEMA = 1


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


SETTLED = 2000
"""Tokens after which the memory of a process has to be flat."""


def growth(readings: dict[int, int], after: int = SETTLED) -> int:
    """Bytes by which memory ever exceeded its first reading at ``after`` tokens or later.

    Raises:
        ValueError: if there is no such reading.
    """
    settled = [reading for token, reading in readings.items() if token >= after]
    if not settled:
        raise ValueError(f"no reading after {after} tokens")
    return max(settled) - settled[0]


def main(
    method: Annotated[str, typer.Option(help="Registry syntax.")] = "lazy_eviction@window=32",
    tokens: Annotated[int, typer.Option(help="Tokens to write.")] = 20_000,
    every: Annotated[int, typer.Option(help="Tokens between two readings.")] = 500,
    out: Out = None,
) -> None:
    """Generate under a budget of 256 entries and read the resident memory."""
    torch.set_num_threads(1)
    model, seen, readings = tiny_llama(), count(1), {}
    with progress() as bar, compress(model, method, budget=ENTRIES) as cache:
        task = bar.add_task(method, total=tokens)

        def notice() -> None:
            bar.advance(task)
            if (token := next(seen)) % every == 0:
                readings[token] = resident_bytes()

        generate(model, Run(64, tokens), cache, Watcher(notice))
        held, kept = cache.memory().total, cache.kept()[0][0]
    found = {
        "method": method,
        "entries": ENTRIES,
        "tokens": tokens,
        "kept": kept,
        "cache_bytes": held,
        "resident_bytes": readings,
        "growth_bytes": growth(readings, min(SETTLED, tokens // 2)),
    }
    write(result_of(SCHEMA, "cpu", found), out)


if __name__ == "__main__":
    sys.exit(typer.run(main))
