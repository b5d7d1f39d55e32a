"""``kvlab perplexity``: how much worse a model predicts a text under a method."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from kvlab.fast.lab.commands.options import (
    Budgets,
    Device,
    Dtype,
    Feed,
    ModelName,
    Parallel,
    read_budgets,
    read_methods,
    read_text,
)
from kvlab.fast.lab.commands.terminal import AsJson, console, is_first_process, progress, working
from kvlab.fast.models import reasoner_directory
from kvlab.reference.tasks import reasoning

if TYPE_CHECKING:
    from kvlab.fast.lab.evaluate.perplexity import Measured, Passage, Row

DEFAULT_METHODS = "h2o caote:h2o fast_caote:h2o tova caote:tova fast_caote:tova"


def perplexity(
    text: Annotated[
        Path | None,
        typer.Option(help="UTF-8 file; default, without --model: 50 problems and their solutions."),
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Registry syntax, separated by ';' or blanks.")
    ] = DEFAULT_METHODS,
    budgets: Budgets = None,
    window: Annotated[
        int | None,
        typer.Option(help="Tokens of the text that are read with one cache; default: 4096."),
    ] = None,
    prompt: Annotated[
        int | None,
        typer.Option(help="Tokens at the start of a window that are not rated; default: 1."),
    ] = None,
    windows: Annotated[int | None, typer.Option(help="Windows to read; default: all.")] = None,
    block_size: Annotated[
        int | None,
        typer.Option(help="Tokens of a block; default: 128, for the problems 16."),
    ] = None,
    feed: Feed = "blocks",
    batch_size: Annotated[
        int | None,
        typer.Option(help="Windows that are read together; default: 1, for the problems 8."),
    ] = None,
    model: ModelName = None,
    device: Device = None,
    dtype: Dtype = "auto",
    parallel: Parallel = None,
    as_json: AsJson = False,
) -> None:
    """Measure the perplexity of a text under methods, against the full cache (CAOTE Table 4).

    A budget in percent is that share of a window.
    """
    if text is None and (model, window, prompt) != (None, None, None):
        raise ValueError("--model, --window and --prompt need a --text")
    specs, asked = tuple(read_methods(methods)), read_budgets(budgets) or ("50%",)
    written = None if text is None else read_text("text", text)
    with working(f"loading {model or 'the embedded reasoner'}"):
        from kvlab.fast.lab.evaluate import perplexity as measuring
        from kvlab.fast.models.loading import load

        block, batch = (16, 8) if written is None else (128, 1)
        block = block if block_size is None else block_size
        batch = batch if batch_size is None else batch_size
        settings = measuring.Settings(specs, asked, block, feed, batch)
        measuring.check(settings)
        cut = (4096 if window is None else window, 1 if prompt is None else prompt, windows)
        measuring.check_window(*cut)
        network, tokenizer = load(model or reasoner_directory(), dtype, device, parallel)
    if written is None:
        passages = problems(tokenizer, 50 if windows is None else windows)
    else:
        passages = measuring.windows(measuring.encoded(tokenizer, written), *cut)
    with progress(transient=True) as bar:
        task = bar.add_task("starting", total=None)
        found = measuring.measure(
            network,
            passages,
            settings,
            lambda done, total, what: bar.update(
                task, completed=done, total=total, description=what
            ),
        )
    if not is_first_process():
        return
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
        return
    console.print(table(found))
    console.print(caption(found), style="dim")


def problems(tokenizer: Any, count: int) -> list["Passage"]:
    """Return the embedded model's task: its solutions are rated."""
    from kvlab.fast.lab.evaluate.perplexity import Passage, encoded

    return [
        Passage(encoded(tokenizer, each.prompt), encoded(tokenizer, each.solution))
        for each in reasoning.held_out(count)
    ]


def table(found: "Measured") -> Table:
    """Lay the figures out."""
    result = Table(
        title=f"{found.passages} passages of {found.mean_length:.0f} tokens, {found.tokens} rated",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
    )
    result.add_column("method", overflow="fold", min_width=20)
    for name in ("budget", "perplexity", "gap", "nats (95 %)", "entries"):
        result.add_column(name, justify="right", no_wrap=True)
    for row in found.rows:
        budget = "" if row.budget is None else str(row.budget)
        if row.refusal is None:
            result.add_row(row.method, budget, *cells(row))
        else:
            result.add_row(f"{row.method}\n[dim]{row.refusal}[/dim]", budget, *["–"] * 4)
    return result


def cells(row: "Row") -> list[str]:
    """Format the figures of a row."""
    interval = "" if row.nats_low is None else f" ({row.nats_low:+.4f} to {row.nats_high:+.4f})"
    return [
        f"{row.perplexity:.4f}",
        f"{row.gap:+.4f}",
        f"{row.nats:+.4f}{interval}",
        f"{row.entries:.0f}",
    ]


def caption(found: "Measured") -> str:
    """Explain the columns."""
    settings = found.settings
    how = f"read in blocks of {settings.block_size} tokens"
    if settings.feed == "steps":
        how = f"prompts {how}, the rest fed token by token, as if written"
    return (
        f"{how} · gap: perplexity less the full cache's · nats: loss per token less the full "
        "cache's, paired over the passages · entries: kept at the end"
    )
