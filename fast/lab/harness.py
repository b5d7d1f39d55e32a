"""lm-evaluation-harness with a compressed cache: the model ``kvlab``, and tasks over methods.

lm-eval finds the model by the entry point in ``pyproject.toml`` from the first release after 0.4.13
on; until then, importing this module registers it.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partialmethod
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict

import torch
from jaxtyping import Int
from lm_eval import evaluator
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from kvlab.fast import methods
from kvlab.fast.engine.policy import Policy
from kvlab.fast.huggingface import compress
from kvlab.fast.lab.evaluate.controls import after_eviction
from kvlab.fast.lab.evaluate.likelihood import FEEDS, Passage, grouped, likelihoods
from kvlab.fast.lab.points import (
    After,
    Row,
    all_of,
    check_points,
    measure_points,
    points,
    tokens_after,
)
from kvlab.fast.lab.store import Store
from kvlab.fast.lab.terminal import OnProgress
from kvlab.fast.models.loading import load, muted
from kvlab.reference.checks import check_at_least, check_choice
from kvlab.reference.selection import budget_entries

log = logging.getLogger(__name__)

Base: Any = HFLM
"""The decorator of lm-eval's class hides the type of the class."""


class CompressedLM(Base):
    """lm-eval's Hugging Face model with a compressed cache.

    Every batch gets a fresh cache. A budget in percent is that share of a request's own tokens:
    its context and the most that it may generate, or its context and the continuation to rate. So
    it does not depend on how requests are batched; requests whose budgets differ run apart.
    """

    def __init__(
        self,
        pretrained: str | PreTrainedModel,
        method: str = "full",
        budget: int | str | None = None,
        block_size: int | None = None,
        feed: str = "steps",
        device: str | None = None,
        dtype: str = "auto",
        parallel: str | None = None,
        batch_size: int | str = 1,
        **options: Any,
    ) -> None:
        """Load a model from a directory or the hub; or take one, with its ``tokenizer``.

        ``feed`` is one of `kvlab.fast.lab.evaluate.likelihood.FEEDS`; ``device``, ``dtype`` and
        ``parallel`` are those of `kvlab.fast.models.loading.load`. Besides `OPTIONS`, which are of
        lm-eval's own class, all options are hyper-parameters of the method: lm-eval cuts its
        arguments at commas, and so ``method=h2o@every=25,recent=8``.
        """
        own = {name: options.pop(name) for name in OPTIONS & set(options)}
        try:
            size = int(batch_size)
        except ValueError:
            raise ValueError(f"batch_size = {batch_size!r} must be a whole number") from None
        check_at_least(1, batch_size=size)
        check_choice(FEEDS, feed=feed)
        methods.get(method, None if budget is None else budget_entries(budget, 10**6), **options)
        self.spec, self.budget, self.method_options = method, budget, options
        self.block_size, self.feed = block_size, feed
        self.after_eviction: dict[str | None, list[After]] = {}
        """Of every batch of each task of lm-eval: tokens that come after an eviction."""
        self._task: str | None = None
        network, name = pretrained, getattr(pretrained, "name_or_path", pretrained)
        if isinstance(pretrained, str):
            network, tokenizer = load(pretrained, dtype, _present(device), parallel)
            own.setdefault("tokenizer", tokenizer)
        # it warns everybody who hands it a model
        with muted("lm_eval.models.huggingface", logging.ERROR):
            super().__init__(pretrained=network, batch_size=size, **own)
        self.pretrained = name  # what lm-eval writes into its results

    def policy_for(self, entries: int | None) -> Policy:
        """Return the method at a budget in entries."""
        return methods.get(self.spec, entries, **self.method_options)

    def entries_for(self, tokens: int) -> int | None:
        """Return the budget of a request of so many tokens."""
        return None if self.budget is None else budget_entries(self.budget, tokens)

    def _by_task(self, name: str, requests: Sequence[Any], disable_tqdm: bool = False) -> list[Any]:
        """Answer the requests of each task by themselves, because each has a count of its own."""
        answer, answers = getattr(super(), name), [None] * len(requests)
        for self._task, numbers in grouped(each.task_name for each in requests).items():
            some = answer([requests[number] for number in numbers], disable_tqdm)
            for number, found in zip(numbers, some, strict=True):
                answers[number] = found
        return answers

    generate_until = partialmethod(_by_task, "generate_until")
    loglikelihood = partialmethod(_by_task, "loglikelihood")
    loglikelihood_rolling = partialmethod(_by_task, "loglikelihood_rolling")

    def _count(self, after: int, tokens: int) -> None:
        self.after_eviction.setdefault(self._task, []).append(After(after, tokens, "tokens"))

    # --- generate_until ---

    def _model_generate(
        self, context: Int[Tensor, "N m"], max_length: int, stop: list[str], **options: Any
    ) -> Int[Tensor, "N t"]:
        real = options.pop("attention_mask", torch.ones_like(context))
        written = [torch.empty(0)] * len(context)
        lengths = (real.sum(dim=1) + max_length - context.shape[1]).tolist()
        for entries, rows in grouped(map(self.entries_for, lengths)).items():
            longest = int(real[rows].sum(dim=1).max())
            part, mask = context[rows, -longest:], real[rows, -longest:]
            policy = self.policy_for(entries)
            with compress(self.model, policy, block_size=self.block_size) as cache:
                result = super()._model_generate(
                    part,
                    max_length - context.shape[1] + part.shape[1],
                    stop,
                    attention_mask=mask,
                    past_key_values=cache,
                    **options,
                )
            firsts = cache.first_evictions
            for row, first, tokens in zip(rows, firsts, result[:, part.shape[1] :], strict=True):
                written[row] = tokens
                count = int((tokens != self.tokenizer.pad_token_id).sum())
                self._count(tokens_after(first, int(real[row].sum()), count), count)
        answers = torch.nn.utils.rnn.pad_sequence(
            written, batch_first=True, padding_value=self.tokenizer.pad_token_id
        )
        return torch.cat([context, answers], dim=1)

    # --- loglikelihood and loglikelihood_rolling ---

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        texts = [Passage(*self._cut(before, after)) for _, before, after in requests]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i].prompt), reverse=True)
        passages = [texts[i] for i in order]
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(texts)
        with tqdm(total=len(texts), disable=disable_tqdm, desc="loglikelihood") as bar:
            found = likelihoods(
                self.model,
                self.policy_for,
                passages,
                [self.entries_for(len(each)) for each in passages],
                self.block_size,
                self.feed,
                override_bs or self.batch_size,
                lambda done: bar.update(done - bar.n),
            )
        for i, likelihood in zip(order, found, strict=True):
            answers[i] = float(likelihood.logprobs.sum()), bool(likelihood.greedy.all())
            self._count(likelihood.after_eviction, len(likelihood.logprobs))
        for (text, _, _), answer in zip(requests, answers, strict=True):
            if text is not None:
                self.cache_hook.add_partial("loglikelihood", text, answer)
        return answers

    def _cut(self, before: list[int], after: list[int]) -> tuple[list[int], list[int]]:
        excess = len(before) + len(after) - (self.max_length + 1)
        if excess <= 0:
            return before, after
        if excess >= len(before):
            raise ValueError(
                f"a continuation of {len(after)} tokens does not fit max_length = {self.max_length}"
            )
        log.warning("left out %d tokens at the start of a context", excess)
        return before[excess:], after


register_model("kvlab")(CompressedLM)

OPTIONS = {
    "add_bos_token",
    "chat_template_args",
    "enable_thinking",
    "max_length",
    "max_batch_size",
    "prefix_token_id",
    "think_end_token",
    "tokenizer",
    "truncation",
}
"""Arguments of `HFLM` that also hold for a compressed cache."""


def _present(device: str | None) -> str | None:
    """Return the device, or the CPU if there is no CUDA: lm-eval asks for CUDA by default."""
    if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
        log.warning("device = %r is not available: the CPU is used", device)
        return "cpu"
    return device


# --- tasks over methods and budgets --------------------------------------------------------------


class Figure(TypedDict):
    """One metric of one task under one method."""

    method: str
    budget: str | None
    task: str
    metric: str
    filter: str
    """lm-eval's name of the rule that cuts an answer out of the text."""
    value: float
    error: float | None
    """Standard error, if lm-eval knows it."""
    problems: int
    after_eviction: After | None
    """Of the tokens that were rated or written."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedRow(Row):
    """What lm-eval found under one method at one budget."""

    figures: tuple[Figure, ...] = ()
    versions: Mapping[str, Any] | None = None


def evaluate_tasks(
    model: str,
    tasks: Sequence[str],
    specs: Sequence[str],
    budgets: Sequence[str] = (),
    *,
    how: Mapping[str, Any] = MappingProxyType({}),
    limit: int | None = None,
    fewshot: int | None = None,
    chat: bool = False,
    include_path: Path | None = None,
    progress: OnProgress = lambda done, total, what: None,
    tell: Callable[[EvaluatedRow], object] = lambda row: None,
    store: Store | None = None,
    **loading: Any,
) -> tuple[EvaluatedRow, ...]:
    """Run every task, group or tag of lm-eval under every method at every budget.

    Budgets are entries, or percent of each request's own tokens. ``how`` holds block_size, feed and
    batch_size, as `CompressedLM` takes them, ``loading`` what `kvlab.fast.models.loading.load`
    takes. None as ``limit`` takes all problems of a task, as ``fewshot`` as many examples as the
    task says; ``include_path`` is a folder of further tasks. ``progress``, ``tell`` and ``store``
    are as in `kvlab.fast.lab.points.measure_points`.
    """
    if not tasks:
        raise ValueError("tasks must name at least one")
    check_choice(FEEDS, feed=how.get("feed", "steps"))
    counts = {name: how.get(name) for name in ("block_size", "batch_size")}
    check_at_least(1, limit=limit, **counts)
    check_at_least(0, fewshot=fewshot)
    check_points(specs, budgets)
    manager = _task_manager(model, tasks, include_path)
    network, tokenizer = load(model, **loading)
    asked = {"num_fewshot": fewshot, "limit": limit, "task_manager": manager}
    asked |= {"apply_chat_template": chat, "fewshot_as_multiturn": chat, "log_samples": False}

    def measure(method: str, budget: str | None) -> EvaluatedRow:
        compressed: Any = CompressedLM(network, method, budget, tokenizer=tokenizer, **how)
        with muted("lm_eval", logging.ERROR):
            results: Any = evaluator.simple_evaluate(compressed, tasks=list(tasks), **asked)
        counts = compressed.after_eviction
        figures = tuple(_figures(method, budget, results, counts))
        return EvaluatedRow(
            method=method, budget=budget, figures=figures, versions=results["versions"]
        )

    return measure_points(points(specs, budgets), measure, EvaluatedRow, progress, tell, store)


def _task_manager(model: str, tasks: Sequence[str], include_path: Path | None) -> TaskManager:
    """Find the tasks; lm-eval's own are read only if needed, because that takes ten seconds."""
    if include_path is not None and not include_path.is_dir():
        raise ValueError(f"include_path = {include_path} must be a folder")
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


def _figures(
    method: str,
    budget: str | None,
    results: Mapping[str, Any],
    counts: Mapping[str | None, Sequence[After]],
) -> Iterator[Figure]:
    """Sort out lm-eval's ``metric,filter`` keys; groups come after their tasks."""
    members = results.get("group_subtasks", {})
    for task, found in {**results["results"], **results.get("groups", {})}.items():
        parts = (each for name in (task, *members.get(task, ())) for each in counts.get(name, ()))
        after = after_eviction(method, all_of(parts))
        for key, value in found.items():
            metric, comma, cut = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = found.get(f"{metric}_stderr,{cut}")
            yield {
                "method": method,
                "budget": budget,
                "task": task,
                "metric": metric,
                "filter": cut,
                "value": float(value),
                "error": error if isinstance(error, float) else None,
                "problems": results["n-samples"].get(task, {}).get("effective", 0),
                "after_eviction": after,
            }


def to_json(rows: Sequence[EvaluatedRow]) -> dict[str, Any]:
    """Return what was found as plain data, with the versions of tasks and of lm-eval."""
    return {
        "figures": [figure for row in rows for figure in row.figures],
        "refusals": [
            {"method": row.method, "budget": row.budget, "reason": row.refusal}
            for row in rows
            if row.refusal is not None
        ],
        "task_versions": {k: v for row in rows for k, v in (row.versions or {}).items()},
        "lm_eval": version("lm-eval"),
    }


def printed(row: EvaluatedRow) -> Iterator[Mapping[str, Any]]:
    """Yield what a row prints: its figures, or why there are none."""
    yield from row.figures
    if row.refusal is not None:
        names = ("task", "metric", "filter", "value", "error", "after_eviction")
        yield {**vars(row), **dict.fromkeys(names)}
