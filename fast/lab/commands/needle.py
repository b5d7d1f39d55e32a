"""``kvlab needle``: is what was said long ago still there under a method."""

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
    ModelName,
    Parallel,
    check_seed,
    prepare_output,
    read_budgets,
    read_methods,
    read_text,
    words,
)
from kvlab.fast.lab.commands.terminal import AsJson, console, is_first_process, progress, working
from kvlab.fast.models import reasoner_directory

if TYPE_CHECKING:
    from kvlab.fast.lab.evaluate.needle import Grid, Search

DEFAULT_METHODS = "streaming_llm h2o caote:h2o tova caote:tova fast_caote:tova"


def needle(
    text: Annotated[
        Path | None,
        typer.Option(help="UTF-8 file to hide in; default, without --model: problems."),
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Registry syntax, separated by ';' or blanks.")
    ] = DEFAULT_METHODS,
    budgets: Budgets = None,
    lengths: Annotated[
        str | None, typer.Option(help="Tokens of a prompt, separated by commas, with --text.")
    ] = None,
    depths: Annotated[
        str, typer.Option(help="Percent of the text before the needle, separated by commas.")
    ] = "0,25,50,75,100",
    trials: Annotated[int, typer.Option(help="Needles per cell; of problems, per length.")] = 10,
    seed: Annotated[int, typer.Option(help="Of needles and problems.")] = 0,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    block_size: Annotated[
        int, typer.Option(help="Read prompts in blocks of so many tokens.")
    ] = 128,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Haystacks that are read together; default: 1, of the problems 8."),
    ] = None,
    heat_map: Annotated[Path, typer.Option(help="SVG to write.")] = Path("kvlab-report/needle.svg"),
    model: ModelName = None,
    device: Device = None,
    dtype: Dtype = "auto",
    parallel: Parallel = None,
    as_json: AsJson = False,
) -> None:
    """Search needles over depth and length, and draw what was found (CAOTE Fig. 2, Table 5).

    A budget in percent is that share of each haystack.
    """
    if text is None and (model, lengths, chat) != (None, None, False):
        raise ValueError("--model, --lengths and --chat need a --text")
    check_seed(seed)
    shares = [_number("depths", each) / 100 for each in words(depths)]
    sizes = [int(_number("lengths", each)) for each in words(lengths or "512,1024,2048,4096")]
    specs, asked = tuple(read_methods(methods)), read_budgets(budgets) or ("70%",)
    hay = None if text is None else read_text("text", text)
    prepare_output("heat_map", heat_map)
    with working(f"loading {model or 'the embedded reasoner'}"):
        from kvlab.fast.lab.evaluate import needle as searching
        from kvlab.fast.models.loading import load

        together = (8 if hay is None else 1) if batch_size is None else batch_size
        settings = searching.Settings(specs, asked, block_size, together)
        searching.check(settings)
        searching.check_grid(shares, trials)
        network, tokenizer = load(model or reasoner_directory(), dtype, device, parallel)
        if hay is None:
            grid = searching.problems(tokenizer, shares, trials, seed)
        else:
            grid = searching.texts(tokenizer, hay, sizes, shares, trials, seed, chat)
    found = _search(network, grid, settings)
    if not is_first_process():
        return
    heat_map.write_text(searching.heat_map(found), encoding="utf-8")
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
        return
    console.print(table(found))
    console.print(f"heat map: {heat_map}", highlight=False, soft_wrap=True)


def _number(name: str, text: str) -> float:
    try:
        return float(text.removesuffix("%"))
    except ValueError:
        raise ValueError(f"{name}: {text!r} must be a number") from None


def _search(network: Any, grid: "Grid", settings: Any) -> "Search":
    from kvlab.fast.lab.evaluate.needle import search

    with progress(transient=True) as bar:
        task = bar.add_task("starting", total=None)
        return search(
            network,
            grid,
            settings,
            lambda done, total, what: bar.update(
                task, completed=done, total=total, description=what
            ),
        )


def table(found: "Search") -> Table:
    """Lay the shares out: over all needles, and by length."""
    needles = sum(map(sum, found.hidden))
    result = Table(
        title=f"{needles} needles: share found, with 95 % interval; then by length in tokens",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title_justify="left",
    )
    result.add_column("method", overflow="fold", min_width=20)
    for name in ("budget", "found", *map(str, found.lengths)):
        result.add_column(name, justify="right", no_wrap=True)
    hidden = [sum(column) for column in zip(*found.hidden, strict=True)]
    for row in found.rows:
        if row.found is None:
            reason = f"{row.method}\n[dim]{row.refusal}[/dim]"
            result.add_row(reason, row.budget or "", *["–"] * (1 + len(hidden)))
            continue
        columns = [sum(column) for column in zip(*row.found, strict=True)]
        interval = f"({row.accuracy_low:.2f}–{row.accuracy_high:.2f})"
        shares = [f"{right / of:.2f}" for right, of in zip(columns, hidden, strict=True)]
        result.add_row(row.method, row.budget or "", f"{row.accuracy:.2f} {interval}", *shares)
    return result
