"""lm-evaluation-harness over methods and budgets, with one loaded model."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lm_eval import evaluator
from lm_eval.tasks import TaskManager

from kvlab.fast.lab.evaluate.compare import takes_budget
from kvlab.fast.lab.evaluate.likelihood import FEEDS
from kvlab.fast.lab.harness.model import CompressedLM
from kvlab.reference import methods
from kvlab.reference.selection import budget_entries
from kvlab.reference.windows import check_choice


@dataclass(frozen=True)
class Settings:
    """What to evaluate."""

    model: str
    """Hugging Face directory, or id on the hub."""
    tasks: tuple[str, ...]
    """As lm-eval names them; groups and tags, too."""
    specs: tuple[str, ...]
    """Methods in registry syntax."""
    budgets: tuple[str, ...]
    """Entries, or percent of a request's own tokens."""
    block_size: int | None = None
    feed: str = "steps"
    batch_size: int = 1
    limit: int | None = None
    """Problems of each task; None for all."""
    fewshot: int | None = None
    """Solved examples before each problem; None for what the task says."""
    chat: bool = False
    """Whether to apply the tokenizer's chat template."""
    include_path: Path | None = None
    """Folder of further tasks."""
    device: str | None = None
    dtype: str = "auto"
    parallel: str | None = None


@dataclass(frozen=True)
class Figure:
    """One metric of one task under one method."""

    method: str
    budget: str | None
    task: str
    metric: str
    filter: str
    """Of lm-eval: how an answer was cut out of the text; ``none`` if it was not."""
    value: float
    error: float | None
    """Standard error, where lm-eval knows one."""
    problems: int


@dataclass(frozen=True)
class Refusal:
    """A method that could not run."""

    method: str
    budget: str | None
    reason: str


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found."""

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


def evaluate(
    settings: Settings, report: Callable[[int, int, str], None] | None = None
) -> Evaluation:
    """Run every task under every method at every budget.

    Args:
        settings: what to evaluate.
        report: called with (runs done, runs in all, what comes next).

    Raises:
        ValueError: if a task is unknown, a method, budget or count is not allowed, or no method
            could run.
        FileNotFoundError: if there is no such model.
    """
    check(settings)
    manager = _task_manager(settings)
    pairs = list(_pairs(settings))
    model = CompressedLM(
        settings.model,
        batch_size=settings.batch_size,
        device=settings.device,
        dtype=settings.dtype,
        parallel=settings.parallel,
    )
    figures: list[Figure] = []
    refusals: list[Refusal] = []
    versions: dict[str, Any] = {}
    for done, (spec, budget) in enumerate(pairs):
        if report is not None:
            report(done, len(pairs), spec if budget is None else f"{spec}, budget {budget}")
        try:
            model.use(spec, budget, settings.block_size, settings.feed)
            results = _run(model, settings, manager)
        except ValueError as error:
            refusals.append(Refusal(spec, budget, str(error)))
        else:
            figures += _figures(spec, budget, results)
            versions |= results.get("versions", {})
    if len(refusals) == len(pairs):
        raise ValueError(f"no method could run; {refusals[0].method}: {refusals[0].reason}")
    return Evaluation(settings, tuple(figures), tuple(refusals), versions, version("lm-eval"))


def check(settings: Settings) -> None:
    """Raise ValueError or TypeError on what is known to fail before anything is loaded."""
    for name in ("tasks", "specs"):
        if not getattr(settings, name):
            raise ValueError(f"{name.replace('specs', 'methods')} must name at least one")
    for name in ("batch_size", "limit"):
        count = getattr(settings, name)
        if count is not None and count < 1:
            raise ValueError(f"{name} = {count} must be at least 1")
    if settings.fewshot is not None and settings.fewshot < 0:
        raise ValueError(f"fewshot = {settings.fewshot} must not be negative")
    check_choice(FEEDS, feed=settings.feed)
    for text in settings.budgets:
        budget_entries(text, 100)
    for spec in settings.specs:
        if takes_budget(spec) and not settings.budgets:
            raise ValueError(f"{spec} needs a budget")
    folder = settings.include_path
    if folder is not None and not folder.is_dir():
        raise ValueError(f"include_path = {folder} must be a folder")


def _task_manager(settings: Settings) -> TaskManager:
    """Find the tasks; reading all that lm-eval brings takes it ten seconds, so only if needed.

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


def _pairs(settings: Settings) -> Iterator[tuple[str, str | None]]:
    for spec in settings.specs:
        methods.parse(spec)
        for budget in settings.budgets if takes_budget(spec) else (None,):
            yield spec, budget


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep lm-eval from logging, and from asking git in a folder that may be no repository."""
    chatter = logging.getLogger("lm_eval")
    before, ask_git = chatter.level, evaluator.get_git_commit_hash
    chatter.setLevel(logging.ERROR)
    evaluator.get_git_commit_hash = lambda: None  # what it finds out is not read
    try:
        yield
    finally:
        evaluator.get_git_commit_hash = ask_git
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
    return results or {"results": {}}  # of several processes only the first is given any


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


def tasks_of(figures: Sequence[Figure]) -> list[str]:
    """Return the tasks in the order in which they came."""
    return list(dict.fromkeys(figure.task for figure in figures))
