"""``kvlab simulate``: replay a trace under methods and budgets. Needs the reference alone."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab import simulation
from kvlab.fast.lab.commands.options import (
    CORES,
    AsJson,
    BlockSize,
    Budgets,
    HtmlReport,
    Methods,
    Threshold,
    Workers,
    prepare_output,
    read_budgets,
    read_methods,
)
from kvlab.fast.lab.terminal import (
    print_caption,
    print_json,
    print_line,
    print_table,
    reporting,
)
from kvlab.reference.traces.judge import EXACT
from kvlab.reference.traces.stored import StoredTrace

DEFAULT_METHODS = "streaming_llm tova h2o caote:h2o lazy_eviction@window=16,threshold=0.01"


def simulate(
    trace: Annotated[Path, typer.Argument(help="Trace, as `kvlab trace` writes it.")],
    methods: Methods = DEFAULT_METHODS,
    budgets: Budgets = None,
    block_size: BlockSize = None,
    threshold: Threshold = 0.01,
    gap: Annotated[
        int, typer.Option(help="Tokens without activation before an entry regains importance.")
    ] = 16,
    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--bound",
            help=f"Find the best keep sets, or bound them; default: exact up to {EXACT} tokens.",
        ),
    ] = None,
    workers: Workers = CORES,
    report: HtmlReport = None,
    as_json: AsJson = False,
) -> None:
    """Ask what methods would have kept of a recorded generation, and what that would have cost.

    A budget in percent is that share of the trace's tokens.
    """
    prepare_output("report", report)
    with reporting() as told:
        found = simulation.simulate(
            StoredTrace(trace),
            read_methods(methods),
            read_budgets(budgets) or ("50%", "70%"),
            block_size=block_size,
            threshold=threshold,
            gap=gap,
            exact=exact,
            workers=workers,
            report=told,
        )
    if report is not None:
        simulation.write_report(found, report)
    if as_json:
        print_json([asdict(row) for row in found.rows])
        return
    print_table(simulation.table(found), simulation.title(found.trace))
    print_caption(simulation.caption(found))
    if report is not None:
        print_line(f"report: {report}")
