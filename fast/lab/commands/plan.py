"""``kvlab plan``: memory and time, from the cost model. Needs the reference alone."""

from dataclasses import asdict
from typing import Annotated

import typer

from kvlab.fast.lab import planning
from kvlab.fast.lab.commands.settings import (
    BlockSize,
    Json,
    Methods,
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
    host: float = 0.0
    """Microseconds of the host per kernel; 0: CUDA graphs."""


@command
def plan(settings: _Settings) -> None:
    """Plan memory and time of a model under methods; nothing is run."""
    check_at_least(0, host=settings.host)
    check_choice(HARDWARE, gpu=settings.gpu.lower())
    serving = planning.Serving(
        find_shape(settings.model),
        HARDWARE[settings.gpu.lower()],
        settings.prompt,
        settings.length,
        settings.batch,
        settings.block_size,
        Runtime(host=settings.host * 1e-6),
    )
    check_points(settings.specs, [settings.budget], settings.prompt + settings.length)
    with settings.printing(planning.COLUMNS, planning.title(serving)) as told:
        found = planning.plan_methods(serving, settings.specs, settings.budget, *told)
    data = {"asked": asdict(serving), "methods": [asdict(row) for row in found.rows]}
    settings.end(found.rows, data, planning.CAPTION)
