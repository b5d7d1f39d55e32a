"""``kvlab view``: one HTML page that plays a text token by token. Needs the reference alone."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from kvlab.fast.lab import viewing
from kvlab.fast.lab.commands.options import (
    BlockSize,
    Json,
    MaxNewTokens,
    Methods,
    Prompt,
    PromptFile,
    ReferenceModel,
    Threshold,
    check_output,
    read_methods,
    read_prompt,
)
from kvlab.fast.lab.points import check_points
from kvlab.fast.lab.tables import layout
from kvlab.fast.lab.terminal import RowPrinter, finish, reporting, working
from kvlab.fast.models import model_location
from kvlab.reference.checks import check_at_least
from kvlab.reference.models import EMBEDDED
from kvlab.reference.simulator.recorder import MOST_VALUES


def view(
    output: Annotated[Path, Argument(help="HTML file to write.")] = Path("view.html"),
    methods: Methods = (
        "h2o caote:h2o lazy_eviction@window=16,threshold=0.01 tova streaming_llm "
        "ahakv@recent=16 kivi@key_bits=8,value_bits=4,residual=32 "
        "ddks@interval=32,selector=8,group=32 full"
    ),
    budget: Annotated[
        str, Option(help="Entries, or percent of what the full cache holds in the end.")
    ] = "70%",
    trace: Annotated[
        Path | None,
        Option(help="Trace of any model; its text is shown. --model then names its tokenizer."),
    ] = None,
    problem: Annotated[
        int,
        Option(
            min=0,
            max=9999,
            help="If no prompt: number of the problem to read, a program or a novel's needle.",
        ),
    ] = 0,
    max_new_tokens: MaxNewTokens = 192,
    most_values: Annotated[
        int,
        Option(
            help="Most entries in the snapshots of a method; more makes the page finer and larger."
        ),
    ] = MOST_VALUES // 4,
    model: ReferenceModel = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    block_size: BlockSize = None,
    threshold: Threshold = 0.01,
    json: Json = False,
) -> None:
    """Show token by token what methods keep, in one page that needs no network."""
    specs = read_methods(methods)
    check_points(specs, [budget])
    check_at_least(0, threshold=threshold)
    check_at_least(1, max_new_tokens=max_new_tokens, most_values=most_values, block_size=block_size)
    check_output("output", output)
    with working("loading"):
        without_text = prompt is None and prompt_file is None
        if trace is not None:
            if not without_text:
                raise ValueError("--trace comes with its own text: no --prompt, no --prompt-file")
            source = viewing.trace_source(trace, model)
        elif without_text and model is None:
            source = viewing.problem_source(problem, max_new_tokens)
        else:
            directory = Path(model_location(str(model or "jumps"), hub=False))
            if without_text and str(model) not in EMBEDDED:
                source = viewing.needle_source(directory, problem, max_new_tokens)
            else:
                text = read_prompt(prompt, prompt_file, model)
                source = viewing.text_source(text, directory, max_new_tokens)
    how = {"block_size": block_size, "threshold": threshold, "most_values": most_values}
    rows = RowPrinter(layout("view"), wanted=not json)
    with reporting(transient=True) as report, rows as tell:
        found = viewing.record_methods(source, specs, budget, report=report, tell=tell, **how)
    viewing.write_viewer(found.timeline, output)
    facts = {"file": str(output), "file_bytes": output.stat().st_size, "model": source.name}
    data = {**facts, "methods": [asdict(row) for row in found.rows]}
    finish(data, found.rows, json, written=f"page: {output}")
