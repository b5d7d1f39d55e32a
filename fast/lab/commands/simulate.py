"""``kvlab simulate``: replay a trace under methods and budgets. Needs the reference alone."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from kvlab.fast.lab import simulation
from kvlab.fast.lab.commands.options import (
    PROCESSORS,
    BlockSize,
    Budgets,
    Json,
    Methods,
    Threshold,
    Workers,
    read_budgets,
    read_methods,
)
from kvlab.fast.lab.steps import kept_steps
from kvlab.fast.lab.tables import layout
from kvlab.fast.lab.terminal import finish, print_table, reporting
from kvlab.reference.simulator.judge import EXACT
from kvlab.reference.simulator.trace import load_trace


def simulate(
    trace: Annotated[Path, Argument(help="Trace, as `kvlab trace` writes it.")],
    methods: Methods = "streaming_llm tova h2o caote:h2o lazy_eviction@window=16,threshold=0.01",
    gap: Annotated[
        int, Option(help="Tokens without activation before an entry regains importance.")
    ] = 16,
    exact: Annotated[
        bool | None,
        Option(
            "--exact/--bound",
            help=f"Find the best keep sets, or bound them; default: exact up to {EXACT} tokens.",
        ),
    ] = None,
    budgets: Budgets = None,
    block_size: BlockSize = None,
    threshold: Threshold = 0.01,
    workers: Workers = PROCESSORS,
    json: Json = False,
) -> None:
    """Ask what methods would have kept of a recorded generation, and what that would have cost.

    A budget in percent is that share of the trace's tokens.
    """
    recorded = load_trace(trace)
    asked: dict[str, Any] = {"block_size": block_size, "threshold": threshold}
    asked |= {"gap": gap, "exact": exact, "specs": read_methods(methods)}
    asked |= {"budgets": read_budgets(budgets, "50%", "70%")}
    with reporting() as report, kept_steps("simulate", trace=trace, **asked) as steps:
        found = simulation.simulate(recorded, **asked, workers=workers, report=report, steps=steps)
    if not json:
        print_table(layout("simulate").table(found.rows, simulation.title(found.trace)))
    finish([asdict(row) for row in found.rows], found.rows, json)
