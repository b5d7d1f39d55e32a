"""``kvlab compare``: methods side by side on a task, by default that of an embedded model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab.commands.options import prepare_output, read_methods
from kvlab.fast.lab.commands.settings import Budgets, Json, Problems, Workers, command
from kvlab.fast.lab.evaluate.backends import default_backend
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.sweep import compare as comparing
from kvlab.fast.lab.sweep.plan import MODEL, TASK, Sweep
from kvlab.fast.lab.tables import Column, Lines, counted
from kvlab.fast.lab.terminal import print_caption, print_json, print_line, reporting
from kvlab.reference import methods as registry
from kvlab.reference.models import EMBEDDED

BATCH = {"fast": 32, "reference": 1}
"""Problems that run together: the reference takes one after the other anyway."""
MEASURED = {"fast": 4, "reference": 1}
"""Most problems on which errors and memory are measured; accuracy counts all problems."""

METHOD, SOLVED, *FIGURES = comparing.COLUMNS
ROWS = Lines((METHOD, Column("budget"), SOLVED, *FIGURES), (16, 6, 16, *[7] * len(FIGURES)))
"""The rows that are printed as they come."""

WHAT_IT_IS = (
    "A language model keeps a key and a value of every token that it has read: the KV cache. Each "
    "method keeps a part of them, or rounds them, and the model has to solve the same problems."
)


@dataclass(frozen=True, kw_only=True)
class Settings(Budgets, Problems, Workers, Json):
    """What to compare, and on what."""

    methods: Annotated[str | None, typer.Option("--methods", "--method")] = None
    """Registry syntax, separated by ';' or blanks."""
    model: str | None = None
    """Short name (kvlab models list), directory, or id on the hub."""
    task: str | None = None
    """As in 'jumps@most=50'; default: what the embedded model solves."""
    backend: str | None = None
    """fast: PyTorch; reference: NumPy. Default: fast if it is installed."""
    report: Path = Path("kvlab-report/compare.html")
    """HTML report to write."""

    def sweep(self) -> Sweep:
        """Return the comparison that is asked for."""
        backend, model = self.backend or default_backend(), self.model or MODEL
        task = self.task or EMBEDDED.get(model, TASK)
        return Sweep(
            methods=registry.compared() if self.methods is None else read_methods(self.methods),
            budgets=self.asked(*comparing.DEFAULT_BUDGETS),
            problems=self.problems,
            measured=min(self.problems, MEASURED.get(backend, 1)),
            models=(model,),
            tasks=(task,),
            seeds=(self.seed,),
            batch=BATCH.get(backend, 1),
            backend=backend,
            to_first_error=find_task(task).one_answer,
        )


@command
def compare(settings: Settings) -> None:
    """Compare methods on an embedded model: accuracy, error, memory, time.

    A budget in percent is that share of the mean tokens of prompt and solution.
    """
    prepare_output("report", settings.report)
    sweep, say = settings.sweep(), not settings.json
    if say:
        print_caption(WHAT_IT_IS)
        problems = counted(sweep.problems, "problem")
        print_line(f"{problems} of {sweep.tasks[0]}, {sweep.backend} backend\n\n{ROWS.head()}")
    with reporting(transient=True) as told:
        tell = (lambda point: print_line(ROWS.row(point))) if say else (lambda point: None)
        comparison = comparing.compare(sweep, settings.workers, told, tell)
        example = comparing.record_example(comparison, told)
    page = comparing.write_report(comparison, settings.report, example)
    if settings.json:
        print_json(comparison.to_json())
        return
    print_line("")
    for sentence in comparing.sentences(comparison):
        print_line(sentence)
    print_caption(comparing.caption(comparison.sweep))
    print_line(f"report: {settings.report.resolve().as_uri()}")
    if page is not None:
        print_line(f"viewer: {page.resolve().as_uri()}")
