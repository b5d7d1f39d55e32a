"""``kvlab compare``: methods side by side on a task, by default that of an embedded model."""

from pathlib import Path
from typing import Annotated

import typer

from kvlab.fast.lab.commands.settings import (
    Budgets,
    Controls,
    Json,
    Problems,
    Workers,
    check_output,
    command,
    read_methods,
    say_notes,
)
from kvlab.fast.lab.evaluate.backends import default_backend
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.points import AFTER_CAPTION, BUDGET_CAPTION, ORACLE, check_points
from kvlab.fast.lab.sweep import compare as comparing
from kvlab.fast.lab.sweep.plan import MODEL, TASK, Sweep
from kvlab.fast.lab.sweep.summary import main_measure
from kvlab.fast.lab.tables import counted
from kvlab.fast.lab.terminal import print_caption, print_line
from kvlab.fast.models import model_location
from kvlab.reference import methods as registry
from kvlab.reference.accounting import ENTRIES
from kvlab.reference.models import EMBEDDED

WHAT_IT_IS = (
    "A language model keeps a key and a value of every token that it has read: the KV cache. Each "
    "method keeps a part of them, or rounds them, and the model has to solve the same problems."
)

CAPTION = (
    "solved: whole solution right, with 95 % interval · error: attention output against everything "
    f"seen, L2 per head · KL in nats from the full cache · {ENTRIES} · KiB: peak · bits: stored "
    "per element of the full cache, scales included · from error to bits: on the first problem "
    "(NumPy) or four (PyTorch) · ms: per token, in brackets of the fastest and the slowest batch; "
    f"one batch alone has none · {AFTER_CAPTION} · {BUDGET_CAPTION}"
)


class _Settings(Budgets, Controls, Problems, Workers, Json):
    methods: Annotated[str | None, typer.Option("--methods", "--method")] = None
    """Registry syntax, separated by ';' or blanks."""
    model: str | None = None
    """Short name (kvlab models list), directory, or id on the hub."""
    task: str | None = None
    """As in 'jumps@most=50'; default: what the embedded model solves."""
    backend: str | None = None
    """fast: PyTorch; reference: NumPy. Default: fast if it is installed."""
    report: Path | None = None
    """HTML report to write: tables and curves."""

    def sweep(self) -> Sweep:
        """Return the comparison that is asked for; errors and memory are of the first problems."""
        backend, model = self.backend or default_backend(), self.model or MODEL
        task = self.task or EMBEDDED.get(model, TASK)
        batch, measured = (32, 4) if backend == "fast" else (1, 1)
        return Sweep(
            methods=registry.compared() if self.methods is None else read_methods(self.methods),
            budgets=self.asked("70%", "85%"),
            problems=self.problems,
            measured=min(self.problems, measured),
            models=(model,),
            tasks=(task,),
            seeds=(self.seed,),
            batch=batch,
            backend=backend,
            to_first_error=find_task(task).one_answer,
            controls=self.controls,
        )


@command
def compare(settings: _Settings) -> None:
    """Compare methods on an embedded model: accuracy, error, memory, time.

    A budget in percent is that share of the mean tokens of prompt and solution.
    """
    check_output("report", settings.report)
    sweep = settings.sweep()
    say_notes(sweep.methods)
    if named := [each for each in sweep.methods if each != ORACLE]:
        check_points(named, sweep.budgets)
    model_location(sweep.models[0], hub=sweep.backend == "fast")  # refused before all else
    if not settings.json:
        print_caption(WHAT_IT_IS)
        problems = counted(sweep.problems, "problem")
        print_line(f"{problems} of {sweep.tasks[0]}, {sweep.backend} backend\n")
    with settings.printing(comparing.columns_of(sweep)) as told:
        comparison = comparing.compare(sweep, settings.workers, *told)
    written = ""
    if settings.report is not None:
        from kvlab.fast.lab.sweep.report import write_comparison

        write_comparison(comparison, settings.report)
        written = f"report: {settings.report.resolve().as_uri()}"
    if not settings.json:
        summary = comparison.summary
        settings.print_gains(summary.gains, main_measure(summary.points))
    settings.end(comparison.summary.points, comparison.to_json(), CAPTION, written)
