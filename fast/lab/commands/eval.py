"""``kvlab eval``: the tasks of lm-evaluation-harness under methods and budgets."""

import sys
from contextlib import redirect_stdout
from pathlib import Path

from kvlab.fast.lab.commands.settings import (
    BlockSize,
    Budgets,
    Feed,
    Json,
    Methods,
    ShardedModel,
    command,
    words,
)
from kvlab.fast.lab.steps import kept_steps
from kvlab.fast.lab.terminal import errors, printing_rows, results_only
from kvlab.fast.models import model_location
from kvlab.reference.models import reasoner_directory


class _Settings(Methods, Budgets, BlockSize, Feed, ShardedModel, Json):
    tasks: str
    """Names of lm-eval, separated by commas."""
    methods: str = "full"
    include_path: Path | None = None
    """Folder of further tasks, as YAML files."""
    limit: int | None = None
    """Problems of each task."""
    fewshot: int | None = None
    """Solved examples before each problem."""
    chat: bool = False
    """Apply the chat template."""
    batch_size: int = 1
    """Problems that run together."""


@command
def evaluate(settings: _Settings) -> None:
    """Evaluate on tasks of lm-evaluation-harness, which the extra eval installs.

    A budget in percent is that share of each request's own tokens: its prompt and the most that
    may be generated, or its prompt and the answer to rate.
    """
    model_location(settings.model or "reasoner")  # before libraries are loaded for it
    from kvlab.fast.lab import harness

    given = vars(settings) | {
        "methods": settings.specs,
        "budgets": settings.asked(),
        "tasks": words(settings.tasks),
        "model": settings.model or str(reasoner_directory()),
    }
    del given["json"]
    how = {name: given[name] for name in ("block_size", "feed", "batch_size")}
    others = {name: given[name] for name in given if name not in ("methods", *how)}

    def report(done: int, total: int, what: str) -> None:
        errors.print(f"[{done + 1}/{total}] {what}", style="dim", highlight=False, markup=False)

    results = redirect_stdout(sys.stdout)
    wanted = not settings.json
    with (
        printing_rows(harness.COLUMNS, wanted=wanted) as print_row,
        kept_steps("eval", **given) as steps,
        results_only(),
    ):

        def tell(row: harness.EvaluatedRow) -> None:
            with results:
                for each in harness.printed(row):
                    print_row(each)

        rows = harness.evaluate_tasks(
            specs=settings.specs, how=how, report=report, tell=tell, steps=steps, **others
        )
    folder = settings.include_path
    plain = {**given, "include_path": None if folder is None else str(folder)}
    data = {"settings": plain, **harness.to_json(rows)}
    settings.end(rows, data, harness.CAPTION)
