"""``kvlab eval``: the tasks of lm-evaluation-harness under methods and budgets."""

from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab.commands.options import (
    AsJson,
    BlockSize,
    Budgets,
    Chat,
    Device,
    Dtype,
    Feed,
    Methods,
    ModelName,
    Parallel,
    read_budgets,
    read_methods,
    words,
)
from kvlab.fast.lab.terminal import (
    errors,
    is_first_process,
    print_caption,
    print_json,
    print_table,
    results_only,
)
from kvlab.reference.models import reasoner_directory


def evaluate(
    tasks: Annotated[str, typer.Option(help="Names of lm-eval, separated by commas.")],
    methods: Methods = "full",
    budgets: Budgets = None,
    model: ModelName = None,
    include_path: Annotated[
        Path | None, typer.Option(help="Folder of further tasks, as YAML files.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Problems of each task.")] = None,
    fewshot: Annotated[
        int | None, typer.Option(help="Solved examples before each problem.")
    ] = None,
    chat: Chat = False,
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
        methods=read_methods(methods),
        budgets=read_budgets(budgets),
        block_size=block_size,
        feed=feed,
        batch_size=batch_size,
        model=model or str(reasoner_directory()),
        tasks=words(tasks),
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
        found = run.evaluate_tasks(settings, report)
    if not is_first_process():
        return
    if as_json:
        print_json(found.to_json())
        return
    for title, table in run.tables(found):
        print_table(table, title)
    print_caption("value ± standard error, as lm-eval counts them")
