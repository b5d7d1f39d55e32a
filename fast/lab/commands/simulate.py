"""``kvlab simulate``: replay a trace under methods and budgets. Needs the reference alone."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab import simulation
from kvlab.fast.lab.commands.settings import (
    BlockSize,
    Budgets,
    Json,
    Methods,
    Threshold,
    Workers,
    command,
)
from kvlab.fast.lab.steps import kept_steps
from kvlab.fast.lab.terminal import print_table, reporting
from kvlab.reference.simulator.judge import EXACT
from kvlab.reference.simulator.trace import load_trace


class _Settings(Methods, Budgets, BlockSize, Threshold, Workers, Json):
    trace: Annotated[Path, typer.Argument()]
    """Trace, as `kvlab trace` writes it."""
    methods: str = "streaming_llm tova h2o caote:h2o lazy_eviction@window=16,threshold=0.01"
    gap: int = 16
    """Tokens without activation before an entry regains importance."""
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--bound",
            help=f"Find the best keep sets, or bound them; default: exact up to {EXACT} tokens.",
        ),
    ] = None


@command
def simulate(settings: _Settings) -> None:
    """Ask what methods would have kept of a recorded generation, and what that would have cost.

    A budget in percent is that share of the trace's tokens.
    """
    trace, file = load_trace(settings.trace), settings.trace.stat()
    asked = vars(settings) | {"file": (file.st_size, file.st_mtime_ns)}
    with reporting() as told, kept_steps("simulate", **asked) as steps:
        found = simulation.simulate(
            trace,
            settings.specs,
            settings.asked("50%", "70%"),
            block_size=settings.block_size,
            threshold=settings.threshold,
            gap=settings.gap,
            exact=settings.exact,
            workers=settings.workers,
            report=told,
            steps=steps,
        )
    if not settings.json:
        print_table(simulation.table(found), simulation.title(found.trace))
    rows = [asdict(row) for row in found.rows]
    settings.end(found.rows, rows, simulation.CAPTION)
