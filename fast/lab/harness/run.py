"""lm-evaluation-harness over methods and budgets, with one loaded model."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lm_eval import evaluator
from lm_eval.tasks import TaskManager

from kvlab.fast.lab.evaluate.likelihood import Reading
from kvlab.fast.lab.harness.model import CompressedLM
from kvlab.fast.lab.tables import MISSING, Table
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


@dataclass(frozen=True)
class Figure:
    """One metric of one task under one method."""

    method: str
    budget: str | None
    task: str
    metric: str
    filter: str
    """lm-eval's name of the rule that cuts an answer out of the text; ``none`` if no rule does."""
    value: float
    error: float | None
    """Standard error, if lm-eval knows it."""
    problems: int


@dataclass(frozen=True)
class Refusal:
    """A method that could not run."""

    method: str
    budget: str | None
    reason: str


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate_tasks` found."""

    settings: Settings
    figures: tuple[Figure, ...]
    refusals: tuple[Refusal, ...]
    task_versions: Mapping[str, Any]
    lm_eval: str
    """Version of lm-eval."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        folder = self.settings.include_path
        found = asdict(self)
        found["settings"]["include_path"] = None if folder is None else str(folder)
        return found


def evaluate_tasks(
    settings: Settings, report: Report = lambda done, total, what: None
) -> Evaluation:
    """Run every task under every method at every budget.

    Args:
        settings: what to evaluate.
        report: is called with (runs done, runs in all, what comes next).

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
    asked = list(settings.points())
    figures: list[Figure] = []
    refusals: list[Refusal] = []
    versions: dict[str, Any] = {}
    for done, (spec, budget) in enumerate(asked):
        report(done, len(asked), spec if budget is None else f"{spec}, budget {budget}")
        try:
            model.use(spec, budget, settings.block_size, settings.feed)
            results = _run(model, settings, manager)
        except ValueError as error:
            refusals.append(Refusal(spec, budget, str(error)))
        else:
            figures += _figures(spec, budget, results)
            versions |= results.get("versions", {})
    if len(refusals) == len(asked):
        raise ValueError(f"no method could run; {refusals[0].method}: {refusals[0].reason}")
    return Evaluation(settings, tuple(figures), tuple(refusals), versions, version("lm-eval"))


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
def _quiet() -> Iterator[None]:
    """Keep lm-eval from logging, and from asking git and pip for what is not read.

    The folder may be no repository, and pip takes longer than a short run.
    """
    chatter = logging.getLogger("lm_eval")
    before, asked = chatter.level, (evaluator.get_git_commit_hash, evaluator.add_env_info)
    chatter.setLevel(logging.ERROR)
    evaluator.get_git_commit_hash = lambda: None
    evaluator.add_env_info = lambda storage: None
    try:
        yield
    finally:
        evaluator.get_git_commit_hash, evaluator.add_env_info = asked
        chatter.setLevel(before)


def _run(model: CompressedLM, settings: Settings, manager: TaskManager) -> Mapping[str, Any]:
    with _quiet():
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
    return results or {"results": {}}  # only the first of several processes is given results


def _figures(spec: str, budget: str | None, results: Mapping[str, Any]) -> Iterator[Figure]:
    """Sort out lm-eval's ``metric,filter`` keys; groups come after their tasks."""
    for task, found in {**results["results"], **results.get("groups", {})}.items():
        problems = results["n-samples"].get(task, {}).get("effective", 0)
        for key, value in found.items():
            metric, comma, filtered = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = found.get(f"{metric}_stderr,{filtered}")
            yield Figure(
                spec,
                budget,
                task,
                metric,
                filtered,
                float(value),
                error if isinstance(error, float) else None,
                problems,
            )


# --- printing ------------------------------------------------------------------------------------


def tables(found: Evaluation) -> Iterator[tuple[str, Table]]:
    """Yield a title and a table for each task: a row per method and budget, a column per metric."""
    for task in dict.fromkeys(figure.task for figure in found.figures):
        figures = [figure for figure in found.figures if figure.task == task]
        metrics = list(dict.fromkeys((figure.metric, figure.filter) for figure in figures))
        names = [name if cut == "none" else f"{name}\n{cut}" for name, cut in metrics]
        rows = list(_rows(figures, metrics))
        rows += [[each.method, each.budget or "", each.reason] for each in found.refusals]
        problems = figures[0].problems
        title = f"{task}, {problems} problems" if problems else task
        yield title, Table(("method", "budget", *names), rows)


def _rows(figures: Sequence[Figure], metrics: Sequence[tuple[str, str]]) -> Iterator[list[str]]:
    """Yield the figures of one task."""
    for spec, budget in dict.fromkeys((figure.method, figure.budget) for figure in figures):
        values = {
            (figure.metric, figure.filter): cell(figure)
            for figure in figures
            if (figure.method, figure.budget) == (spec, budget)
        }
        yield [spec, budget or "", *(values.get(metric, MISSING) for metric in metrics)]


def cell(figure: Figure) -> str:
    """Format a value and its standard error."""
    error = "" if figure.error is None else f" ± {figure.error:.3f}"
    return f"{figure.value:.3f}{error}"
