"""``kvlab view``: one HTML page that plays a text token by token. Needs the reference alone."""

from pathlib import Path

from kvlab.fast.lab import viewing
from kvlab.fast.lab.commands.options import check_output, read_methods, read_prompt
from kvlab.fast.lab.points import check_points
from kvlab.fast.lab.tables import layout
from kvlab.fast.lab.terminal import RowPrinter, finish, progress_bar, working
from kvlab.fast.models import model_location
from kvlab.reference.checks import check_at_least
from kvlab.reference.models import EMBEDDED


def view(
    output: Path = Path("view.html"),
    methods: str = (
        "h2o caote:h2o lazy_eviction@window=16,threshold=0.01 tova streaming_llm "
        "ahakv@recent=16 kivi@key_bits=8,value_bits=4,residual=32 "
        "ddks@interval=32,selector=8,group=32 full"
    ),
    budget: str = "70%",
    trace: Path | None = None,
    problem: int = 0,
    max_new_tokens: int = 192,
    most_values: int | None = None,
    model: Path | None = None,
    prompt: str | None = None,
    prompt_file: Path | None = None,
    block_size: int | None = None,
    threshold: float = 0.01,
    json: bool = False,
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
    with progress_bar(transient=True) as progress, rows as tell:
        found = viewing.record_methods(source, specs, budget, progress=progress, tell=tell, **how)
    viewing.write_viewer(found.timeline, output)
    facts = {"file": str(output), "file_bytes": output.stat().st_size, "model": source.name}
    data = {**facts, "methods": found.rows}
    finish(data, found.rows, json, rows.legend, f"page: {output}")
