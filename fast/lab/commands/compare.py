"""``kvlab compare``: methods side by side on a task, by default that of an embedded model."""

from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab.commands.options import (
    CORES,
    AsJson,
    Budgets,
    ModelName,
    Problems,
    Seed,
    Workers,
    prepare_output,
    read_budgets,
)
from kvlab.fast.lab.evaluate import compare as comparing
from kvlab.fast.lab.evaluate.backends import default_backend
from kvlab.fast.lab.evaluate.report import write_report
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.sweep.configuration import MODEL, TASK, Sweep
from kvlab.fast.lab.terminal import (
    errors,
    print_caption,
    print_json,
    print_line,
    print_table,
    reporting,
)
from kvlab.fast.models import EMBEDDED
from kvlab.reference import methods as registry

BATCH = {"fast": 32, "reference": 1}
"""Problems that run together: the reference takes one after the other anyway."""
MEASURED = 4
"""Problems along which errors and memory are measured, at most; all are solved."""


def compare(
    budgets: Budgets = None,
    methods: Annotated[
        str | None, typer.Option(help="Registry syntax, separated by ';' or blanks.")
    ] = None,
    problems: Problems = 16,
    seed: Seed = 0,
    model: ModelName = None,
    task: Annotated[
        str | None,
        typer.Option(help="As in 'jumps@most=50'; default: what the embedded model solves."),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(help="fast: PyTorch; reference: NumPy. Default: fast if it is installed."),
    ] = None,
    workers: Workers = CORES,
    report: Annotated[Path, typer.Option(help="HTML report to write.")] = Path(
        "kvlab-report/compare.html"
    ),
    as_json: AsJson = False,
) -> None:
    """Compare methods on an embedded model: accuracy, error, memory, time.

    A budget in percent is that share of the mean tokens of prompt and solution.
    """
    prepare_output("report", report)
    if backend is None:
        backend = default_backend()
        errors.print(f"backend: {backend}", style="dim", highlight=False)
    model = model or MODEL
    task = task or EMBEDDED.get(model, TASK)
    sweep = Sweep(
        methods=tuple((methods or "").replace(";", " ").split()) or registry.compared(),
        budgets=read_budgets(budgets) or comparing.DEFAULT_BUDGETS,
        problems=problems,
        measured=min(problems, MEASURED),
        models=(model,),
        tasks=(task,),
        seeds=(seed,),
        batch=BATCH.get(backend, 1),
        backend=backend,
        to_first_error=find_task(task).one_answer,
    )
    with reporting() as told:
        comparison = comparing.compare(sweep, workers, told)
    write_report(comparison, report)
    if as_json:
        print_json(comparison.to_json())
        return
    for title, table in comparing.tables(comparison):
        print_table(table, title)
    for sentence in comparing.beside_chance(comparison):
        print_caption(sentence)
    print_caption(comparing.caption(comparison.sweep))
    print_line(f"report: {report}")
