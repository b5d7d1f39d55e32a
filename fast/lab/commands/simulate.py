"""``kvlab simulate``: replay a trace under methods and budgets. Needs the reference alone."""

from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from shlex import quote
from typing import Any

from kvlab.fast.lab import simulation
from kvlab.fast.lab.bars import Bars
from kvlab.fast.lab.commands.compare import and_next, print_found
from kvlab.fast.lab.commands.options import PROCESSORS, read_budgets, read_methods
from kvlab.fast.lab.loop import kept
from kvlab.fast.lab.tables import layout, percent
from kvlab.fast.lab.terminal import finish, print_line, progress_bar
from kvlab.reference.selection import budget_entries
from kvlab.reference.simulator.trace import load_trace

SKILL = "of the way from evicting at random to the best keep sets, which know the future"


def simulate(
    trace: Path,
    methods: str = "streaming_llm tova h2o caote:h2o lazy_eviction@window=16,threshold=0.01",
    gap: int = 16,
    exact: bool | None = None,
    budgets: list[str] | None = None,
    block_size: int | None = None,
    threshold: float = 0.01,
    workers: int = PROCESSORS,
    table: bool = False,
    json: bool = False,
) -> None:
    """Ask what methods would have kept of a recorded generation, and what that would have cost.

    A budget in percent is that share of the trace's tokens.
    """
    recorded = load_trace(trace)
    asked: dict[str, Any] = {"block_size": block_size, "threshold": threshold}
    asked |= {"gap": gap, "exact": exact, "specs": read_methods(methods)}
    asked |= {"budgets": read_budgets(budgets, "50%", "70%")}
    with progress_bar() as progress, kept("simulate", trace=trace, **asked) as store:
        found = simulation.simulate(
            recorded, **asked, workers=workers, progress=progress, store=store
        )
    best = max(found.rows, key=lambda row: row.skill or 0)
    shows = f"What this shows: {best.method} goes furthest, {percent(best.skill)} {SKILL}."
    told = and_next(shows, f"view run.html --trace {quote(str(trace))}")
    if not json:
        rows = layout("simulate").table(found.rows, simulation.title(found.trace))
        entries = {text: budget_entries(text, recorded.shape[3]) for text in asked["budgets"]}
        bars = Bars(found.rows, attrgetter("skill"), SKILL, budgets=entries)
        print_line("" if table else f"{rows.title}\n")
        print_found(bars, "simulate", [rows, *[rows] * table], table)
    finish([asdict(row) for row in found.rows], found.rows, json, (), told)
