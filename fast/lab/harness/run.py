"""lm-evaluation-harness over methods and budgets, with one loaded model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
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


@dataclass(frozen=True, kw_only=True)
class Settings(Reading):
    """What to evaluate; a budget in percent is a share of each request's own tokens.

    Raises:
        ValueError: if a value is not allowed, or a method needs a budget and there is none.
    """

    model: str
    """Hugging Face directory, or id on the hub."""
    tasks: tuple[str, ...]
    """Names of lm-eval's tasks, groups and tags."""
    limit: int | None = None
    """Problems of each task; None takes all."""
    fewshot: int | None = None
    """Solved examples before each problem; None takes what the task says."""
    chat: bool = False
    """Whether to apply the tokenizer's chat template."""
    include_path: Path | None = None
    """Folder of further tasks."""
    device: str | None = None
    dtype: str = "auto"
    parallel: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.tasks:
            raise ValueError("tasks must name at least one")
        if self.limit is not None:
            check_at_least(1, limit=self.limit)
        if self.fewshot is not None and self.fewshot < 0:
            raise ValueError(f"fewshot = {self.fewshot} must not be negative")
        if self.include_path is not None and not self.include_path.is_dir():
            raise ValueError(f"include_path = {self.include_path} must be a folder")


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

    settings: Settings
    rows: tuple[EvaluatedRow, ...]

    @property
    def figures(self) -> list[Figure]:
        """The figures of all methods."""
        return [figure for row in self.rows for figure in row.figures]

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with the versions of tasks and of lm-eval."""
        folder = self.settings.include_path
        return {
            "settings": {
                **asdict(self.settings),
                "include_path": None if folder is None else str(folder),
            },
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
    settings: Settings, report: Report = lambda done, total, what: None
) -> Evaluation:
    """Run every task under every method at every budget.

    Args:
        settings: what to evaluate.
        report: is called with (runs done, runs in all, the method) before each run.

    Raises:
        ValueError: if a task is unknown, or no method could run.
        FileNotFoundError: if there is no such model.
    """
    manager = _task_manager(settings)
    model = CompressedLM(
        settings.model,
        batch_size=settings.batch_size,
        device=settings.device,
        dtype=settings.dtype,
        parallel=settings.parallel,
    )

    def measure(method: str, budget: str | None, told: Told) -> EvaluatedRow:
        told(0)
        model.use(method, budget, settings.block_size, settings.feed)
        with quiet("lm_eval"), _nothing_asked():
            results = evaluator.simple_evaluate(
                model=model,
                tasks=list(settings.tasks),
                num_fewshot=settings.fewshot,
                limit=settings.limit,
                apply_chat_template=settings.chat,
                fewshot_as_multiturn=settings.chat,
                task_manager=manager,
                log_samples=False,
            )
        results = results or {"results": {}}  # only the first of several processes is given any
        figures, versions = tuple(_figures(method, budget, results)), results.get("versions", {})
        return EvaluatedRow(method=method, budget=budget, figures=figures, versions=versions)

    return Evaluation(settings, measure_points(settings.points(), 1, measure, EvaluatedRow, report))


def _task_manager(settings: Settings) -> TaskManager:
    """Find the tasks; lm-eval's own are read only if needed, because that takes ten seconds.

    RULER's tasks make their texts with the tokenizer that the metadata name.
    """
    folder = None if settings.include_path is None else str(settings.include_path)
    metadata: Any = {"pretrained": settings.model}
    if folder is not None:
        manager = TaskManager(include_path=folder, include_defaults=False, metadata=metadata)
        if all(manager.match_tasks([task]) for task in settings.tasks):
            return manager
    manager = TaskManager(include_path=folder, metadata=metadata)
    for task in settings.tasks:
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
