"""``kvlab simulate``: replay a trace under methods and budgets. Needs the reference alone."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvlab.fast.lab import simulation
from kvlab.fast.lab.commands.options import PROCESSORS, read_budgets, read_methods
from kvlab.fast.lab.loop import kept
from kvlab.fast.lab.tables import layout
from kvlab.fast.lab.terminal import finish, print_table, reporting
from kvlab.reference.simulator.trace import load_trace


def simulate(
    trace: Path,
    methods: str = "streaming_llm tova h2o caote:h2o lazy_eviction@window=16,threshold=0.01",
    gap: int = 16,
    exact: bool | None = None,
    budgets: list[str] | None = None,
    block_size: int | None = None,
    threshold: float = 0.01,
    workers: int = PROCESSORS,
    json: bool = False,
) -> None:
    """Ask what methods would have kept of a recorded generation, and what that would have cost.

    A budget in percent is that share of the trace's tokens.
    """
    recorded = load_trace(trace)
    asked: dict[str, Any] = {"block_size": block_size, "threshold": threshold}
    asked |= {"gap": gap, "exact": exact, "specs": read_methods(methods)}
    asked |= {"budgets": read_budgets(budgets, "50%", "70%")}
    with reporting() as report, kept("simulate", trace=trace, **asked) as store:
        found = simulation.simulate(recorded, **asked, workers=workers, report=report, store=store)
    if not json:
        print_table(layout("simulate").table(found.rows, simulation.title(found.trace)))
    finish([asdict(row) for row in found.rows], found.rows, json)
