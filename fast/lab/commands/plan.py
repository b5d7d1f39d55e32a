"""``kvlab plan``: memory, time and devices, from the cost model. Needs the reference alone."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab import planning
from kvlab.fast.lab.commands.options import (
    AsJson,
    BlockSize,
    Methods,
    at_least,
    prepare_output,
    read_methods,
)
from kvlab.fast.lab.files import write_text
from kvlab.fast.lab.terminal import print_caption, print_json, print_line, print_table, working
from kvlab.reference.planner.cost import Runtime
from kvlab.reference.planner.hardware import HARDWARE, find_hardware
from kvlab.reference.planner.shape import SHAPES, find_shape

DEFAULT_METHODS = "full streaming_llm h2o tova caote:h2o lazy_eviction kivi desirekv"

Model = Annotated[
    str, typer.Option(help=f"config.json, its directory, or one of {', '.join(SHAPES)}.")
]
Gpu = Annotated[str, typer.Option(help=f"One of {', '.join(HARDWARE)}.")]
Budget = Annotated[str, typer.Option(help="Entries, or percent of prompt and length together.")]
Prompt = Annotated[int, typer.Option(help="Tokens given.")]
Length = Annotated[int, typer.Option(help="Tokens written.")]
Batch = Annotated[int | None, typer.Option(help="Sequences at once; default: as many as fit.")]
Users = Annotated[int, typer.Option(help="Users who all write at the same time.")]
Spread = Annotated[
    bool,
    typer.Option(
        "--spread", help="Users are anywhere in their texts; default: all at their fullest."
    ),
]
Speed = Annotated[float, typer.Option(help="Least tokens per second for every user.")]
BandwidthShare = Annotated[
    float, typer.Option(help="Share of the peak bandwidth that kernels reach.")
]
FlopsShare = Annotated[
    float, typer.Option(help="Share of the peak arithmetic that matrix products reach.")
]
Host = Annotated[float, typer.Option(help="Microseconds of the host per kernel; 0: CUDA graphs.")]
Papers = Annotated[
    bool, typer.Option("--papers", help="Print the papers' figures beside the model's.")
]
Report = Annotated[
    Path | None, typer.Option(help="HTML report to write; with --papers, a Markdown table.")
]


def plan(
    model: Model = "llama-3.1-8b",
    gpu: Gpu = "h200",
    methods: Methods = DEFAULT_METHODS,
    budget: Budget = "25%",
    prompt: Prompt = 512,
    length: Length = 16384,
    batch: Batch = None,
    block_size: BlockSize = None,
    users: Users = 1_000_000,
    spread: Spread = False,
    speed: Speed = 0.0,
    bandwidth_share: BandwidthShare = Runtime.bandwidth_share,
    flops_share: FlopsShare = Runtime.flops_share,
    host: Host = 0.0,
    papers: Papers = False,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Plan memory, time and devices for a model under a method; nothing is run."""
    prepare_output("report", report)
    if papers:
        show_papers(as_json, report)
        return
    at_least("host", host, 0)
    at_least("speed", speed, 0)
    serving = planning.Serving(
        find_shape(model),
        find_hardware(gpu),
        prompt,
        length,
        batch,
        block_size,
        Runtime(bandwidth_share, flops_share, host=host * 1e-6),
        users,
        speed,
        spread,
    )
    with working("planning"):
        found = planning.plan_methods(serving, read_methods(methods), budget)
    if report is not None:
        planning.write_report(found, report)
    if as_json:
        rows = [asdict(row) for row in found.rows]
        print_json({"asked": asdict(serving), "methods": rows})
        return
    print_table(planning.table(found), planning.title(serving))
    print_caption(planning.CAPTION)
    if report is not None:
        print_line(f"report: {report}")


def show_papers(as_json: bool, report: Path | None) -> None:
    """Print the papers' figures beside the model's."""
    with working("planning what the papers measured"):
        found = planning.all_figures()
    table = planning.figures_table(found)
    if report is not None:
        write_text(report, f"{table.markdown()}\n")
    if as_json:
        print_json([{**asdict(each), "ratio": each.ratio} for each in found])
        return
    print_table(table)
