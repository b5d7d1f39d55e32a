"""``kvlab view``: one HTML page that plays what methods keep. Needs the reference alone."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from kvlab.fast.lab.commands.options import (
    MaxNewTokens,
    PromptFile,
    PromptText,
    at_least,
    prepare_output,
    read_methods,
    read_prompt,
)
from kvlab.fast.lab.commands.terminal import AsJson, console, progress, working
from kvlab.fast.lab.evaluate.compare import takes_budget
from kvlab.fast.lab.viewer import write_viewer
from kvlab.fast.models import reasoner_directory
from kvlab.reference import methods as registry
from kvlab.reference.policy import Policy
from kvlab.reference.selection import budget_entries
from kvlab.reference.tasks import reasoning
from kvlab.reference.timeline import Run, Timeline, record_generation, record_replay, token_texts
from kvlab.reference.timeline.recorder import MOST_VALUES
from kvlab.reference.tokenizer import load_tokenizer
from kvlab.reference.traces.trace import load_trace
from kvlab.reference.transformer import Transformer, end_of_text

DEFAULT_METHODS = (
    "h2o caote:h2o lazy_eviction@window=16,threshold=0.01 tova streaming_llm "
    "ahakv@recent=16 kivi@key_bits=8,value_bits=4,residual=32 "
    "ddks@interval=32,selector=8,group=32 full"
)


@dataclass(frozen=True)
class Row:
    """One method, as the table shows it."""

    method: str
    budget: int | None
    refusal: str | None = None
    tokens_read: int | None = None
    entries: float | None = None
    """Per KV head after the last step, mean over layers and heads."""
    solved: bool | None = None


@dataclass(frozen=True)
class Source:
    """What there is to record: a text to continue, or a trace."""

    name: str
    record: Callable[..., Run]
    """Called with a policy, its budget and the snapshots' size; returns the run."""
    length: Callable[[], int]
    """Tokens that the full cache holds in the end."""


def view(
    output: Annotated[Path, typer.Argument(help="HTML file to write.")] = Path("view.html"),
    methods: Annotated[
        str, typer.Option(help="Registry syntax, separated by ';' or blanks.")
    ] = DEFAULT_METHODS,
    budget: Annotated[
        str, typer.Option(help="Entries, or percent of what the full cache holds in the end.")
    ] = "70%",
    model: Annotated[
        Path | None,
        typer.Option(help="Hugging Face directory; default: the embedded reasoner."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Trace of any model: all methods see its text. --model: its tokenizer."),
    ] = None,
    prompt: PromptText = None,
    prompt_file: PromptFile = None,
    problem: Annotated[
        int, typer.Option(min=0, help="Held-out problem of the embedded reasoner, if no prompt.")
    ] = 1,
    max_new_tokens: MaxNewTokens = 128,
    block_size: Annotated[
        int | None, typer.Option(help="Read the prompt in blocks of so many tokens.")
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Attention that counts as an activation.")
    ] = 0.01,
    most_values: Annotated[
        int, typer.Option(help="Entries in the snapshots of a method: more is finer, and larger.")
    ] = MOST_VALUES // 4,
    as_json: AsJson = False,
) -> None:
    """Show token by token what methods keep, in one page that needs no network."""
    at_least("max_new_tokens", max_new_tokens, 1)
    at_least("threshold", threshold, 0)
    at_least("most_values", most_values, 1)
    if block_size is not None:
        at_least("block_size", block_size, 1)
    specs = read_methods(methods)
    for spec in specs:
        registry.parse(spec)
    budget_entries(budget, 100)
    prepare_output("output", output)
    options = {"block_size": block_size, "threshold": threshold, "most_values": most_values}
    if trace is not None:
        if prompt is not None or prompt_file is not None:
            raise ValueError("--trace comes with its own text: no --prompt, no --prompt-file")
        source = from_trace(trace, model, options)
    elif prompt is None and prompt_file is None and model is None:
        source = from_problem(problem, max_new_tokens, options)
    else:
        text = read_prompt(prompt, prompt_file, None if model is None else str(model))
        source = from_text(text, model or reasoner_directory(), max_new_tokens, options)
    with working("measuring the full cache"):
        entries = budget_entries(budget, source.length() if "%" in budget else 1)
    found = list(record_all(source, specs, entries))
    runs = tuple(run for _, run in found if run is not None)
    if not runs:
        raise ValueError(f"no method could run; {found[0][0].method}: {found[0][0].refusal}")
    with working(f"writing {output}"):
        write_viewer(Timeline(source.name, threshold, runs), output)
    rows = [row for row, _ in found]
    if as_json:
        facts = {"file": str(output), "file_bytes": output.stat().st_size, "model": source.name}
        print(json.dumps({**facts, "methods": [asdict(row) for row in rows]}, indent=1))
        return
    console.print(table(rows))
    console.print(f"page: {output}", highlight=False, soft_wrap=True)


def from_problem(number: int, max_new_tokens: int, options: dict) -> Source:
    """Let the embedded reasoner solve a held-out problem, and grade it."""
    problem = reasoning.held_out(number + 1)[number]
    options = options | {"solved": lambda text: reasoning.grade(problem, text).solution_correct}
    return from_text(problem.prompt, reasoner_directory(), max_new_tokens, options)


def from_text(text: str, directory: Path, max_new_tokens: int, options: dict) -> Source:
    """Let a model continue a text."""
    with working(f"loading {directory.name}"):
        model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
    run = partial(record_generation, model, tokenizer)
    given = {"prompt": text, "max_new_tokens": max_new_tokens, "stop": end_of_text(directory)}
    return Source(
        directory.name,
        lambda policy, **more: run(policy, **given, **options, **more),
        lambda: run(registry.get("full"), **given, most_values=1).read,
    )


def from_trace(path: Path, directory: Path | None, options: dict) -> Source:
    """Ask about a recorded generation.

    Raises:
        ValueError: if the file is no trace, or its tokens are not the tokenizer's.
    """
    recorded = load_trace(path)
    name, embedded = recorded.metadata.model, reasoner_directory()
    if directory is None and name == embedded.name:
        directory = embedded
    ids = recorded.tokens.tolist()
    if directory is None:
        texts = [f"{token} " for token in ids]
    else:
        tokenizer = load_tokenizer(directory)
        if max(ids) >= (known := tokenizer.get_vocab_size()):
            raise ValueError(f"{directory} knows {known} tokens, {path} holds token {max(ids)}")
        texts = token_texts(tokenizer, ids)
    return Source(
        name,
        lambda policy, **more: record_replay(recorded, texts, policy, **options, **more),
        lambda: len(ids),
    )


def record_all(
    source: Source, specs: Sequence[str], entries: int
) -> Iterator[tuple[Row, Run | None]]:
    """Record one method after the other; one that cannot work here is refused in its row."""
    with progress(transient=True) as bar:
        task = bar.add_task("recording", total=None)
        for spec in specs:
            bar.update(task, description=spec, completed=0, total=None)
            row = Row(spec, entries if takes_budget(spec) else None)
            tell = partial(follow, bar, task)
            try:
                policy: Policy = registry.get(spec, row.budget)
                run = source.record(policy, budget=row.budget, progress=tell)
            except ValueError as error:
                yield replace(row, refusal=str(error)), None
            else:
                yield summed_up(row, run), run


def follow(bar, task, done: int, total: int) -> None:
    """Show tokens read on a progress bar."""
    bar.update(task, completed=done, total=total)


def summed_up(row: Row, run: Run) -> Row:
    """Return the row with a run's figures."""
    return replace(row, tokens_read=run.read, entries=float(run.entries()[-1]), solved=run.solved)


def table(rows: Sequence[Row]) -> Table:
    """Lay the methods out."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    shown.add_column("method", overflow="fold")
    for name in ("budget", "entries", "tokens read", "solved"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        budget = "own rule" if row.budget is None else str(row.budget)
        if row.refusal is not None:
            shown.add_row(f"{row.method}\n[dim]{escape(row.refusal)}[/dim]", budget, *["–"] * 3)
            continue
        solved = "–" if row.solved is None else "yes" if row.solved else "no"
        shown.add_row(row.method, budget, f"{row.entries:.0f}", str(row.tokens_read), solved)
    return shown
