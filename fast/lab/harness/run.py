"""lm-evaluation-harness over methods and budgets, with one loaded model."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lm_eval import evaluator
from lm_eval.tasks import TaskManager

from kvlab.fast.lab.evaluate.likelihood import Reading
from kvlab.fast.lab.harness.model import CompressedLM, quiet
from kvlab.fast.lab.points import Row, Told, measure_points
from kvlab.fast.lab.tables import Column, Table, counted, tabulate
from kvlab.fast.lab.terminal import Report
from kvlab.reference.checks import check_at_least

Figure = Mapping[str, Any]
"""One metric of one task under one method."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedRow(Row):
    """What lm-eval found under one method at one budget."""

    figures: tuple[Figure, ...] = ()
    """Method, budget, task, metric, filter (lm-eval's name of the rule that cuts an answer out of
    the text), value, standard error if lm-eval knows it, and number of problems."""
    versions: Mapping[str, Any] = field(default_factory=dict)
    """Versions of the tasks."""


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate_tasks` found."""

    rows: tuple[EvaluatedRow, ...]

    @property
    def figures(self) -> list[Figure]:
        """The figures of all methods."""
        return [figure for row in self.rows for figure in row.figures]

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with the versions of tasks and of lm-eval."""
        return {
            "figures": self.figures,
            "refusals": [
                {"method": row.method, "budget": row.budget, "reason": row.refusal}
                for row in self.rows
                if row.refusal is not None
            ],
            "task_versions": {k: v for row in self.rows for k, v in row.versions.items()},
            "lm_eval": version("lm-eval"),
        }


def evaluate_tasks(
    model: str,
    tasks: Sequence[str],
    reading: Reading,
    *,
    limit: int | None = None,
    fewshot: int | None = None,
    chat: bool = False,
    include_path: Path | None = None,
    report: Report = lambda done, total, what: None,
    **loading: Any,
) -> Evaluation:
    """Run every task under every method at every budget.

    Args:
        model: Hugging Face directory, or id on the hub.
        tasks: names of lm-eval's tasks, groups and tags.
        reading: methods, budgets, and how texts are read. A budget in percent is a share of each
            request's own tokens.
        limit: problems of each task; None takes all.
        fewshot: solved examples before each problem; None takes what the task says.
        chat: apply the tokenizer's chat template.
        include_path: folder of further tasks.
        report: is called with (runs done, runs in all, the method) before each run.
        loading: device, dtype and parallel, as `CompressedLM` takes them.

    Raises:
        ValueError: if an argument is not allowed, a task is unknown, or no method could run.
        FileNotFoundError: if there is no such model.
    """
    if not tasks:
        raise ValueError("tasks must name at least one")
    check_at_least(1, limit=1 if limit is None else limit)
    if fewshot is not None and fewshot < 0:
        raise ValueError(f"fewshot = {fewshot} must not be negative")
    if include_path is not None and not include_path.is_dir():
        raise ValueError(f"include_path = {include_path} must be a folder")
    manager = _task_manager(model, tasks, include_path)
    network = CompressedLM(model, batch_size=reading.batch_size, **loading)

    def measure(method: str, budget: str | None, told: Told) -> EvaluatedRow:
        told(0)
        network.use(method, budget, reading.block_size, reading.feed)
        with quiet("lm_eval"), _nothing_asked():
            results = evaluator.simple_evaluate(
                model=network,
                tasks=list(tasks),
                num_fewshot=fewshot,
                limit=limit,
                apply_chat_template=chat,
                fewshot_as_multiturn=chat,
                task_manager=manager,
                log_samples=False,
            )
        results = results or {"results": {}}  # only the first of several processes is given any
        figures, versions = tuple(_figures(method, budget, results)), results.get("versions", {})
        return EvaluatedRow(method=method, budget=budget, figures=figures, versions=versions)

    return Evaluation(measure_points(reading.points(), 1, measure, EvaluatedRow, report))


def _task_manager(model: str, tasks: Sequence[str], include_path: Path | None) -> TaskManager:
    """Find the tasks; lm-eval's own are read only if needed, because that takes ten seconds.

    RULER's tasks make their texts with the tokenizer that the metadata name.
    """
    folder = None if include_path is None else str(include_path)
    metadata: Any = {"pretrained": model}
    if folder is not None:
        manager = TaskManager(include_path=folder, include_defaults=False, metadata=metadata)
        if all(manager.match_tasks([task]) for task in tasks):
            return manager
    manager = TaskManager(include_path=folder, metadata=metadata)
    for task in tasks:
        if not manager.match_tasks([task]):
            raise ValueError(
                f"unknown task {task!r}: `lm_eval ls tasks` lists those of lm-eval "
                f"{version('lm-eval')}, --include-path adds others"
            )
    return manager


@contextmanager
def _nothing_asked() -> Iterator[None]:
    """Keep lm-eval from asking git and pip for what is not read.

    The folder may be no repository, and pip takes longer than a short run.
    """
    asked = evaluator.get_git_commit_hash, evaluator.add_env_info
    evaluator.get_git_commit_hash = lambda: None
    evaluator.add_env_info = lambda storage: None
    try:
        yield
    finally:
        evaluator.get_git_commit_hash, evaluator.add_env_info = asked


def _figures(method: str, budget: str | None, results: Mapping[str, Any]) -> Iterator[Figure]:
    """Sort out lm-eval's ``metric,filter`` keys; groups come after their tasks."""
    for task, found in {**results["results"], **results.get("groups", {})}.items():
        problems = results["n-samples"].get(task, {}).get("effective", 0)
        for key, value in found.items():
            metric, comma, cut = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = found.get(f"{metric}_stderr,{cut}")
            yield {
                **{"method": method, "budget": budget, "task": task},
                **{"metric": metric, "filter": cut, "value": float(value)},
                "error": error if isinstance(error, float) else None,
                "problems": problems,
            }


# --- printing ------------------------------------------------------------------------------------

COLUMNS = (
    Column("method"),
    Column("budget"),
    Column("metric"),
    Column("filter"),
    Column("value", format=".3f"),
    Column("± error", "error", ".3f"),
)


def tables(found: Evaluation) -> Iterator[tuple[str, Table]]:
    """Yield a title and a table for each task, and a table of what could not run."""
    for task in dict.fromkeys(figure["task"] for figure in found.figures):
        figures = [figure for figure in found.figures if figure["task"] == task]
        problems = figures[0]["problems"]
        title = f"{task}, {counted(problems, 'problem')}" if problems else task
        yield title, tabulate(figures, COLUMNS, words=4)
    if refused := [row for row in found.rows if row.refusal is not None]:
        yield "could not run", tabulate(refused, (*COLUMNS[:2], Column("reason", lambda row: None)))
