"""``kvlab compare``: methods side by side on a task, by default that of an embedded model."""

from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab.commands.options import (
    CORES,
    METHODS,
    AsJson,
    Budgets,
    ModelName,
    Problems,
    Seed,
    Workers,
    prepare_output,
    read_budgets,
    read_methods,
)
from kvlab.fast.lab.evaluate import compare as comparing
from kvlab.fast.lab.evaluate.backends import default_backend
from kvlab.fast.lab.evaluate.example import record_example
from kvlab.fast.lab.evaluate.findings import sentences
from kvlab.fast.lab.evaluate.report import write_report
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.sweep.configuration import MODEL, TASK, Sweep
from kvlab.fast.lab.tables import Column, Lines, counted
from kvlab.fast.lab.terminal import (
    print_caption,
    print_json,
    print_line,
    reporting,
)
from kvlab.reference import methods as registry
from kvlab.reference.models import EMBEDDED
from kvlab.reference.simulator.timeline import Timeline

BATCH = {"fast": 32, "reference": 1}
"""Problems that run together: the reference takes one after the other anyway."""
MEASURED = {"fast": 4, "reference": 1}
"""Most problems on which errors and memory are measured; accuracy counts all problems."""

METHOD, SOLVED, *FIGURES = comparing.COLUMNS
ROWS = Lines(
    (METHOD, Column("budget"), SOLVED, *FIGURES),
    (16, 6, 16, *[7] * len(FIGURES)),
)
"""The rows that are printed as they come."""

WHAT_IT_IS = (
    "A language model keeps a key and a value of every token that it has read: the KV cache. Each "
    "method keeps a part of them, or rounds them, and the model has to solve the same problems."
)


def compare(
    budgets: Budgets = None,
    methods: Annotated[str | None, METHODS] = None,
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
    backend = backend or default_backend()
    model = model or MODEL
    task = task or EMBEDDED.get(model, TASK)
    sweep = Sweep(
        methods=registry.compared() if methods is None else read_methods(methods),
        budgets=read_budgets(budgets) or comparing.DEFAULT_BUDGETS,
        problems=problems,
        measured=min(problems, MEASURED.get(backend, 1)),
        models=(model,),
        tasks=(task,),
        seeds=(seed,),
        batch=BATCH.get(backend, 1),
        backend=backend,
        to_first_error=find_task(task).one_answer,
    )
    comparison, example = run(sweep, workers, quiet=as_json)
    page = write_report(comparison, report, example)
    if as_json:
        print_json(comparison.to_json())
        return
    print_line("")
    for sentence in sentences(comparison):
        print_line(sentence)
    print_caption(comparing.caption(comparison.sweep))
    print_line(f"report: {report.resolve().as_uri()}")
    if page is not None:
        print_line(f"viewer: {page.resolve().as_uri()}")


def run(sweep: Sweep, workers: int, quiet: bool) -> tuple[comparing.Comparison, Timeline | None]:
    """Compare, print every row as soon as it is there, and record a problem for the viewer."""
    if not quiet:
        print_caption(WHAT_IT_IS)
        problems = counted(sweep.problems, "problem")
        print_line(f"{problems} of {sweep.tasks[0]}, {sweep.backend} backend")
        print_line("")
        print_line(ROWS.head())
    with reporting(transient=True) as told:
        tell = (lambda point: None) if quiet else (lambda point: print_line(ROWS.row(point)))
        comparison = comparing.compare(sweep, workers, told, tell)
        return comparison, record_example(comparison, told)
