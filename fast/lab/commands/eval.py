"""``kvlab eval``: the tasks of lm-evaluation-harness under methods and budgets."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from kvlab.fast.lab.commands.options import (
    BlockSize,
    Budgets,
    Device,
    Dtype,
    Feed,
    ModelName,
    Parallel,
    read_budgets,
    read_methods,
    words,
)
from kvlab.fast.lab.commands.terminal import AsJson, console, errors, is_first_process, results_only
from kvlab.fast.models import reasoner_directory

if TYPE_CHECKING:
    from kvlab.fast.lab.harness.run import Evaluation, Figure


def evaluate(
    tasks: Annotated[str, typer.Option(help="Names of lm-eval, separated by commas.")],
    methods: Annotated[
        str, typer.Option(help="Registry syntax, separated by ';' or blanks.")
    ] = "full",
    budgets: Budgets = None,
    model: ModelName = None,
    include_path: Annotated[
        Path | None, typer.Option(help="Folder of further tasks, as YAML files.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Problems of each task.")] = None,
    fewshot: Annotated[
        int | None, typer.Option(help="Solved examples before each problem.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the chat template.")] = False,
    block_size: BlockSize = None,
    feed: Feed = "steps",
    batch_size: Annotated[int, typer.Option(help="Problems that run together.")] = 1,
    device: Device = None,
    dtype: Dtype = "auto",
    parallel: Parallel = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate on tasks of lm-evaluation-harness, which the extra eval installs.

    A budget in percent is that share of each request's own tokens: its prompt and the most that
    may be generated, or its prompt and the answer to rate.
    """
    from kvlab.fast.lab.harness import run

    settings = run.Settings(
        model=model or str(reasoner_directory()),
        tasks=words(tasks),
        specs=tuple(read_methods(methods)),
        budgets=read_budgets(budgets),
        block_size=block_size,
        feed=feed,
        batch_size=batch_size,
        limit=limit,
        fewshot=fewshot,
        chat=chat,
        include_path=include_path,
        device=device,
        dtype=dtype,
        parallel=parallel,
    )

    def report(done: int, total: int, what: str) -> None:
        if is_first_process():
            errors.print(f"[{done + 1}/{total}] {what}", style="dim", highlight=False, markup=False)

    with results_only():
        found = run.evaluate(settings, report)
    if not is_first_process():
        return
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
        return
    for task in run.tasks_of(found.figures):
        console.print(table(task, found))
    console.print("value ± standard error, as lm-eval counts them", style="dim")


def table(task: str, found: "Evaluation") -> Table:
    """Lay one task out: a row per method and budget, a column per metric."""
    figures = [figure for figure in found.figures if figure.task == task]
    metrics = list(dict.fromkeys((figure.metric, figure.filter) for figure in figures))
    heading = f"{task}, {figures[0].problems} problems" if figures[0].problems else task
    result = Table(title=heading, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    result.add_column("method", overflow="fold")
    result.add_column("budget", justify="right", no_wrap=True)
    for metric, filtered in metrics:
        name = metric if filtered == "none" else f"{metric}\n{filtered}"
        result.add_column(name, justify="right")
    for spec, budget in dict.fromkeys((figure.method, figure.budget) for figure in figures):
        values = {
            (figure.metric, figure.filter): cell(figure)
            for figure in figures
            if (figure.method, figure.budget) == (spec, budget)
        }
        result.add_row(spec, budget or "", *(values.get(metric, "–") for metric in metrics))
    for refusal in found.refusals:
        reason = f"{refusal.method}\n[dim]{refusal.reason}[/dim]"
        result.add_row(reason, refusal.budget or "", *["–"] * len(metrics))
    return result


def cell(figure: "Figure") -> str:
    """Format a value and its standard error."""
    error = "" if figure.error is None else f" ± {figure.error:.3f}"
    return f"{figure.value:.3f}{error}"
