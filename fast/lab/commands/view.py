"""``kvlab view``: one HTML page that plays a text token by token. Needs the reference alone."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab import viewing
from kvlab.fast.lab.commands.settings import (
    BlockSize,
    Json,
    Methods,
    Prompt,
    ReferenceModel,
    Threshold,
    check_output,
    command,
    read_prompt,
)
from kvlab.fast.lab.points import check_points
from kvlab.fast.lab.terminal import working
from kvlab.fast.models import model_location
from kvlab.reference.checks import check_at_least
from kvlab.reference.models import EMBEDDED
from kvlab.reference.simulator.recorder import MOST_VALUES


class _Settings(Methods, ReferenceModel, Prompt, BlockSize, Threshold, Json):
    output: Annotated[Path, typer.Argument()] = Path("view.html")
    """HTML file to write."""
    methods: str = (
        "h2o caote:h2o lazy_eviction@window=16,threshold=0.01 tova streaming_llm "
        "ahakv@recent=16 kivi@key_bits=8,value_bits=4,residual=32 "
        "ddks@interval=32,selector=8,group=32 full"
    )
    budget: str = "70%"
    """Entries, or percent of what the full cache holds in the end."""
    trace: Path | None = None
    """Trace of any model; its text is shown. --model then names its tokenizer."""
    problem: Annotated[int, typer.Option(min=0, max=9999)] = 0
    """If no prompt: number of the problem to read, a program or a novel's needle."""
    max_new_tokens: int = 192
    most_values: int = MOST_VALUES // 4
    """Most entries in the snapshots of a method; more makes the page finer and larger."""


@command
def view(settings: _Settings) -> None:
    """Show token by token what methods keep, in one page that needs no network."""
    output = settings.output
    check_points(settings.specs, [settings.budget])
    check_at_least(0, threshold=settings.threshold)
    check_at_least(1, max_new_tokens=settings.max_new_tokens, most_values=settings.most_values)
    check_at_least(1, block_size=1 if settings.block_size is None else settings.block_size)
    check_output("output", output)
    with working("loading"):
        source = _find_source(settings)
    with settings.printing(viewing.COLUMNS) as (report, tell):
        found = viewing.record_methods(
            source,
            settings.specs,
            settings.budget,
            block_size=settings.block_size,
            threshold=settings.threshold,
            most_values=settings.most_values,
            report=report,
            tell=tell,
        )
    viewing.write_viewer(found.timeline, output)
    facts = {"file": str(output), "file_bytes": output.stat().st_size, "model": source.name}
    data = {**facts, "methods": [asdict(row) for row in found.rows]}
    settings.end(found.rows, data, written=f"page: {output}")


def _find_source(asked: _Settings) -> viewing.Source:
    model, most = asked.model, asked.max_new_tokens
    without_text = asked.prompt is None and asked.prompt_file is None
    if asked.trace is not None:
        if not without_text:
            raise ValueError("--trace comes with its own text: no --prompt, no --prompt-file")
        return viewing.trace_source(asked.trace, model)
    if without_text and model is None:
        return viewing.problem_source(asked.problem, most)
    directory = Path(model_location(str(model or "jumps"), hub=False))
    if without_text and str(model) not in EMBEDDED:
        return viewing.needle_source(directory, asked.problem, most)
    text = read_prompt(asked.prompt, asked.prompt_file, model)
    return viewing.text_source(text, directory, most)
