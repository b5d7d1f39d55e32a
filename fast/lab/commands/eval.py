"""``kvlab eval``: the tasks of lm-evaluation-harness under methods and budgets."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from kvlab.fast.lab.commands.options import USUAL, Loading, read_budgets, read_methods, words
from kvlab.fast.lab.loop import kept
from kvlab.fast.lab.tables import layout
from kvlab.fast.lab.terminal import RowPrinter, finish, print_aside, results_only
from kvlab.fast.models import model_location
from kvlab.reference.models import reasoner_directory


def evaluate(
    tasks: str,
    methods: str = "full",
    include_path: Path | None = None,
    limit: int | None = None,
    fewshot: int | None = None,
    chat: bool = False,
    batch_size: int = 1,
    budgets: list[str] | None = None,
    block_size: int | None = None,
    feed: str = "steps",
    model: str | None = None,
    loading: Loading = USUAL,
    json: bool = False,
) -> None:
    """Evaluate on tasks of lm-evaluation-harness, which the extra eval installs.

    A budget in percent is that share of each request's own tokens: its prompt and the most that
    may be generated, or its prompt and the answer to rate.
    """
    model_location(model or "reasoner")  # before libraries are loaded for it
    from kvlab.fast.lab import harness

    specs = read_methods(methods)
    how = {"block_size": block_size, "feed": feed, "batch_size": batch_size}
    asked: dict[str, Any] = {
        "model": model or str(reasoner_directory()),
        "tasks": words(tasks),
        "budgets": read_budgets(budgets),
        "limit": limit,
        "fewshot": fewshot,
        "chat": chat,
        "include_path": include_path,
        **vars(loading),
    }
    settings = asked | how | {"methods": specs, "include_path": include_path and str(include_path)}

    def progress(done: int, total: int, what: str) -> None:
        print_aside(f"[{done + 1}/{total}] {what}")

    results = redirect_stdout(sys.stdout)
    with (
        RowPrinter(layout("eval"), wanted=not json) as print_row,
        kept("eval", **settings) as store,
        results_only(),
    ):

        def tell(row: harness.EvaluatedRow) -> None:
            with results:
                for each in harness.printed(row):
                    print_row(each)

        rows = harness.evaluate_tasks(
            specs=specs, how=how, progress=progress, tell=tell, store=store, **asked
        )
    finish({"settings": settings, **harness.to_json(rows)}, rows, json, print_row.legend)
