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
from kvlab.fast.lab.benchmarks.results import Out, write
from kvlab.fast.lab.benchmarks.workload import ENTRIES, Run, Watcher, generate, tiny_llama
from kvlab.fast.lab.terminal import progress

SCHEMA = 1
SETTLED = 2000
"""Tokens after which the memory of a process has to be flat."""


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


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
    after = min(SETTLED, tokens // 2)
    settled = [resident for token, resident in readings.items() if token >= after]
    if not settled:
        raise typer.BadParameter(f"no reading after {after} tokens")
    found = {
        "method": method,
        "entries": ENTRIES,
        "tokens": tokens,
        "kept": kept,
        "cache_bytes": held,
        "resident_bytes": readings,
        "growth_bytes": max(settled) - settled[0],
    }
    write(SCHEMA, "cpu", found, out)


if __name__ == "__main__":
    sys.exit(typer.run(main))
