"""``kvlab view``: one HTML page that plays what methods keep. Needs the reference alone."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab import viewing
from kvlab.fast.lab.commands.options import (
    AsJson,
    BlockSize,
    MaxNewTokens,
    Methods,
    ModelDirectory,
    PromptFile,
    PromptText,
    Threshold,
    at_least,
    prepare_output,
    read_methods,
    read_prompt,
)
from kvlab.fast.lab.terminal import print_json, print_line, print_table, reporting, working
from kvlab.fast.lab.viewer import write_viewer
from kvlab.fast.models import EMBEDDED, model_location
from kvlab.reference import methods as registry
from kvlab.reference.selection import budget_entries
from kvlab.reference.timeline.recorder import MOST_VALUES

DEFAULT_METHODS = (
    "h2o caote:h2o lazy_eviction@window=16,threshold=0.01 tova streaming_llm "
    "ahakv@recent=16 kivi@key_bits=8,value_bits=4,residual=32 "
    "ddks@interval=32,selector=8,group=32 full"
)


def view(
    output: Annotated[Path, typer.Argument(help="HTML file to write.")] = Path("view.html"),
    methods: Methods = DEFAULT_METHODS,
    budget: Annotated[
        str, typer.Option(help="Entries, or percent of what the full cache holds in the end.")
    ] = "70%",
    model: ModelDirectory = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Trace of any model; its text is shown. --model then names its tokenizer."
        ),
    ] = None,
    prompt: PromptText = None,
    prompt_file: PromptFile = None,
    problem: Annotated[
        int,
        typer.Option(
            min=0,
            max=9999,
            help="If no prompt: number of the problem to read, a program or a novel's needle.",
        ),
    ] = 0,
    max_new_tokens: MaxNewTokens = 192,
    block_size: BlockSize = None,
    threshold: Threshold = 0.01,
    most_values: Annotated[
        int,
        typer.Option(
            help="Most entries in the snapshots of a method; more makes the page finer and larger."
        ),
    ] = MOST_VALUES // 4,
    as_json: AsJson = False,
) -> None:
    """Show token by token what methods keep, in one page that needs no network."""
    at_least("threshold", threshold, 0)
    specs = read_methods(methods)
    for spec in specs:
        registry.parse(spec)
    budget_entries(budget, 100)
    prepare_output("output", output)
    with working("loading"):
        source = find_source(trace, model, prompt, prompt_file, problem, max_new_tokens)
    with reporting(transient=True) as report:
        found = viewing.record_methods(
            source,
            specs,
            budget,
            block_size=block_size,
            threshold=threshold,
            most_values=most_values,
            report=report,
        )
    write_viewer(found.timeline, output)
    if as_json:
        facts = {"file": str(output), "file_bytes": output.stat().st_size, "model": source.name}
        print_json({**facts, "methods": [asdict(row) for row in found.rows]})
        return
    print_table(viewing.table(found.rows))
    print_line(f"page: {output}")


def find_source(
    trace: Path | None,
    model: Path | None,
    prompt: str | None,
    prompt_file: Path | None,
    problem: int,
    max_new_tokens: int,
) -> viewing.Source:
    """Return what the options ask for: a trace, a text, or a problem.

    Raises:
        ValueError: if the options contradict each other, or a value is not allowed.
    """
    if trace is not None:
        if prompt is not None or prompt_file is not None:
            raise ValueError("--trace comes with its own text: no --prompt, no --prompt-file")
        return viewing.trace_source(trace, model)
    if prompt is None and prompt_file is None:
        if model is None:
            return viewing.problem_source(problem, max_new_tokens)
        if str(model) not in EMBEDDED:
            directory = Path(model_location(str(model)))
            return viewing.needle_source(directory, problem, max_new_tokens)
    text = read_prompt(prompt, prompt_file, model)
    return viewing.text_source(text, Path(model_location(str(model or "jumps"))), max_new_tokens)
