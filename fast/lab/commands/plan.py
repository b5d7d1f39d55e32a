"""``kvlab plan``: memory, time and devices, from the cost model. Needs the reference alone."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab import planning
from kvlab.fast.lab.commands.settings import (
    BlockSize,
    Json,
    Methods,
    check_output,
    command,
)
from kvlab.fast.lab.points import check_points
from kvlab.reference.checks import check_at_least, check_choice
from kvlab.reference.simulator.cost import Runtime
from kvlab.reference.simulator.sizes import HARDWARE, SHAPES, find_shape


class _Settings(Methods, BlockSize, Json):
    model: Annotated[
        str, typer.Option(help=f"config.json, its directory, or one of {', '.join(SHAPES)}.")
    ] = "llama-3.1-8b"
    gpu: Annotated[str, typer.Option(help=f"One of {', '.join(HARDWARE)}.")] = "h200"
    methods: str = "full streaming_llm h2o tova caote:h2o lazy_eviction kivi desirekv"
    budget: str = "25%"
    """Entries, or percent of prompt and length together."""
    prompt: int = 512
    """Tokens given."""
    length: int = 16384
    """Tokens written."""
    batch: int | None = None
    """Sequences at once; default: as many as fit."""
    users: int = 1_000_000
    """Users who all write at the same time."""
    spread: bool = False
    """Users are anywhere in their texts; default: all at their fullest."""
    speed: float = 0.0
    """Least tokens per second for every user."""
    bandwidth_share: float = Runtime.bandwidth_share
    """Share of the peak bandwidth that kernels reach."""
    flops_share: float = Runtime.flops_share
    """Share of the peak arithmetic that matrix products reach."""
    host: float = 0.0
    """Microseconds of the host per kernel; 0: CUDA graphs."""
    report: Path | None = None
    """HTML report to write."""


@command
def plan(settings: _Settings) -> None:
    """Plan memory, time and devices for a model under a method; nothing is run."""
    check_output("report", settings.report)
    check_at_least(0, host=settings.host)
    check_choice(HARDWARE, gpu=settings.gpu.lower())
    serving = planning.Serving(
        find_shape(settings.model),
        HARDWARE[settings.gpu.lower()],
        settings.prompt,
        settings.length,
        settings.batch,
        settings.block_size,
        Runtime(settings.bandwidth_share, settings.flops_share, host=settings.host * 1e-6),
        settings.users,
        settings.speed,
        settings.spread,
    )
    check_points(settings.specs, [settings.budget], settings.prompt + settings.length)
    with settings.printing(planning.COLUMNS, planning.title(serving)) as told:
        found = planning.plan_methods(serving, settings.specs, settings.budget, *told)
    if settings.report is not None:
        planning.write_report(found, settings.report)
    data = {"asked": asdict(serving), "methods": [asdict(row) for row in found.rows]}
    written = f"report: {settings.report}" if settings.report else ""
    settings.end(found.rows, data, planning.CAPTION, written)
