"""Every method on the embedded reasoner: what it answers, what it spoils, what it stores.

A method is given in registry syntax. The work is spread over processes, and every process computes
with one thread, so that times are comparable.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from kvlab.fast.lab.evaluate.attempts import (
    Answered,
    answer_fully,
    ask,
    attempt,
    measure,
    together_or_alone,
)
from kvlab.fast.lab.evaluate.backends import Backend, load_backend
from kvlab.fast.lab.evaluate.here import Here
from kvlab.fast.lab.evaluate.statistics import wilson
from kvlab.fast.lab.evaluate.tasks import Reasoning
from kvlab.reference import methods
from kvlab.reference.measure import Measurement
from kvlab.reference.selection import budget_entries
from kvlab.reference.tasks import reasoning

BUDGETED = (
    "streaming_llm",
    "h2o",
    "h2o@every=16",
    "tova",
    "tova@per_head=true",
    "snapkv@window=16,schedule=every_block",
    "raas",
    "raas@pin_prompt=false,threshold=0.01",
    "rkv@every=16",
    "nacl",
    "lazy_eviction",
    "lazy_eviction@window=16,threshold=0.01",
    "caote:h2o",
    "caote:tova",
    "caote:tova@heads=layer",
    "caote:snapkv@window=16",
    "fast_caote:h2o",
    "fast_caote:tova",
    "fast_caote:snapkv@window=16",
    "ahakv@recent=16",
)
"""Methods that keep a given number of entries; periods and windows fit traces of 183-239 tokens."""

SELF_SIZED = (
    "full",
    "kivi@key_bits=8,value_bits=4,residual=32",
    "kivi@key_bits=4,value_bits=4,residual=32",
    "rpc@interval=32,selector=8",
    "ddks@interval=32,selector=8,group=32",
    "desirekv@interval=32,selector=8,group=32",
)
"""Methods whose memory follows from their own parameters."""

DEFAULT_METHODS = (*SELF_SIZED, *BUDGETED)


@dataclass(frozen=True)
class Settings:
    """What to compare."""

    model: str | Path
    """Hugging Face directory; with the fast backend also an id on the hub."""
    specs: tuple[str, ...]
    budgets: tuple[str, ...]
    """Entries, or percent of the mean full-cache length."""
    problems: int
    seed: int
    workers: int
    """Processes; 0: none but this one."""
    backend: str = "reference"


@dataclass(frozen=True)
class Run:
    """One method at one budget on one problem."""

    spec: str
    budget: int | None
    problem: int
    answer_correct: bool
    solved: bool
    """The whole solution is right."""
    seconds_per_token: float
    measurement: Measurement


@dataclass(frozen=True)
class Row:
    """One method at one budget, over all problems."""

    spec: str
    budget: int | None
    problems: int
    refusal: str | None
    """Why the method could not run at this budget; the figures below are then None."""
    accuracy: float | None = None
    accuracy_low: float | None = None
    accuracy_high: float | None = None
    output_error: float | None = None
    kl: float | None = None
    agreement: float | None = None
    entries: float | None = None
    kilobytes: float | None = None
    average_bits: float | None = None
    payload_bits: float | None = None
    milliseconds_per_token: float | None = None


@dataclass(frozen=True)
class Comparison:
    """What `compare` found."""

    settings: Settings
    lengths: tuple[int, ...]
    """Tokens of prompt and full-cache answer of each problem."""
    budgets: dict[str, int]
    """The budgets asked for, in entries."""
    rows: tuple[Row, ...]
    memory: dict[str, list[float]]
    """KiB of keys and values after each token of the first problem, per row label."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        settings = {**asdict(self.settings), "model": str(self.settings.model)}
        return {
            "settings": settings,
            "mean_length": float(np.mean(self.lengths)),
            "budgets": self.budgets,
            "rows": [asdict(row) for row in self.rows],
            "memory": self.memory,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Runs:
    """Every method at every budget on every problem."""

    lengths: tuple[int, ...]
    """Tokens of prompt and full-cache answer of each problem."""
    budgets: dict[str, int]
    """The budgets asked for, in entries."""
    pairs: list[tuple[str, int | None]]
    """Methods and budgets."""
    runs: list[Any]
    """Each a `Run`, or (method, budget, why it could not run)."""


def label(spec: str, budget: int | None) -> str:
    """Name a row."""
    return spec if budget is None else f"{spec} · {budget}"


def compare(
    settings: Settings, progress: Callable[[int, int, str], None] | None = None
) -> Comparison:
    """Sum up what every method does at every budget on every problem.

    Args:
        settings: what to compare.
        progress: called with (done, total, what was done last).

    Raises:
        ValueError: if a method, a budget or a count is not allowed.
        FileNotFoundError: if the model directory is incomplete.
    """
    started = time.perf_counter()
    found = run_all(settings, progress)
    rows = tuple(_row(spec, budget, found.runs, settings.problems) for spec, budget in found.pairs)
    memory = {
        label(run.spec, run.budget): (run.measurement.nbytes / 1024).tolist()
        for run in found.runs
        if isinstance(run, Run) and run.problem == 0
    }
    seconds = time.perf_counter() - started
    return Comparison(settings, found.lengths, found.budgets, rows, memory, seconds)


def run_all(settings: Settings, progress: Callable[[int, int, str], None] | None = None) -> Runs:
    """Run every method at every budget on every problem, and keep all single runs.

    Args and errors are those of `compare`.
    """
    backend = check(settings)
    numbered = list(enumerate(reasoning.held_out(settings.problems, settings.seed)))
    report = progress or (lambda done, total, what: None)
    with _pool(settings) as pool:
        answered: list[Answered] = _collect(
            [pool.submit(_prepare, several) for several in batched(numbered, backend.batch)],
            lambda done, total: report(done, total, "full cache"),
        )
        answered.sort(key=lambda each: each.question.number)
        lengths = tuple(len(each.question.prompt) + len(each.answer) for each in answered)
        mean_length = round(float(np.mean(lengths)))
        budgets = {text: budget_entries(text, mean_length) for text in settings.budgets}
        pairs = list(_pairs(settings.specs, sorted(set(budgets.values()))))
        runs = _collect(
            [
                pool.submit(_run, several, *pair)
                for several in batched(answered, backend.batch)
                for pair in pairs
            ],
            lambda done, total: report(done, total, "methods"),
        )
    return Runs(lengths, budgets, pairs, runs)


def check(settings: Settings) -> Backend:
    """Load the model; raise ValueError or TypeError on what is known to fail beforehand."""
    if settings.problems < 1:
        raise ValueError(f"problems = {settings.problems} must be at least 1")
    if settings.seed < 0:
        raise ValueError(f"seed = {settings.seed} must not be negative")
    if not settings.specs:
        raise ValueError("methods must name at least one method")
    for text in settings.budgets:
        budget_entries(text, 100)
    for spec in settings.specs:
        methods.parse(spec)
    return load_backend(settings.backend, settings.model)


def batched(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Cut a sequence into pieces of at most ``size``."""
    return [items[first : first + size] for first in range(0, len(items), size)]


def takes_budget(spec: str) -> bool:
    """Say whether a method has to be given a budget."""
    method = methods.parse(spec)
    return getattr(method, "base", method).budgeted


def _pairs(specs: Sequence[str], budgets: Sequence[int]) -> Iterator[tuple[str, int | None]]:
    yield from ((spec, None) for spec in specs if not takes_budget(spec))
    for budget in budgets:
        yield from ((spec, budget) for spec in specs if takes_budget(spec))


# --- in the worker processes ---------------------------------------------------------------------

_worker: dict[str, Backend] = {}


def _pool(settings: Settings) -> Executor:
    if settings.workers == 0:
        _load(settings.backend, settings.model)
        return Here()
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    return ProcessPoolExecutor(
        settings.workers,
        get_context("spawn"),
        initializer=_load,
        initargs=(settings.backend, settings.model),
    )


def _load(backend: str, model: str | Path) -> None:
    _worker["backend"] = load_backend(backend, model)


def _prepare(numbered: Sequence[tuple[int, reasoning.Problem]]) -> list[Answered]:
    return answer_fully(_worker["backend"], ask(_worker["backend"], numbered))


def _run(
    answered: Sequence[Answered], spec: str, budget: int | None
) -> list[Run | tuple[str, int | None, str]]:
    found = together_or_alone(answered, lambda several: _run_together(several, spec, budget))
    return [run if isinstance(run, Run) else (spec, budget, str(run)) for run in found]


def _run_together(answered: Sequence[Answered], spec: str, budget: int | None) -> list[Run]:
    backend = _worker["backend"]
    questions = [each.question for each in answered]
    attempts = attempt(backend, Reasoning(), questions, spec, budget)
    measured = measure(backend, answered, spec, budget)
    return [
        Run(
            spec,
            budget,
            question.number,
            made.answer_correct,
            made.solved,
            made.seconds_per_token,
            measurement,
        )
        for question, made, measurement in zip(questions, attempts, measured, strict=True)
    ]


# --- summary -------------------------------------------------------------------------------------


def _collect(futures: list[Future[Any]], report: Callable[[int, int], None]) -> list[Any]:
    results: list[Any] = []
    for done, future in enumerate(as_completed(futures), start=1):
        results += future.result()
        report(done, len(futures))
    return results


def _row(spec: str, budget: int | None, results: Sequence[Any], problems: int) -> Row:
    refusals = [r[2] for r in results if isinstance(r, tuple) and r[:2] == (spec, budget)]
    if refusals:
        return Row(spec, budget, problems, f"{len(refusals)} of {problems}: {refusals[0]}")
    runs = [r for r in results if isinstance(r, Run) and (r.spec, r.budget) == (spec, budget)]
    right = sum(run.solved for run in runs)
    low, high = wilson(right, len(runs))

    def mean(column: Callable[[Run], float]) -> float:
        return float(np.mean([column(run) for run in runs]))

    return Row(
        spec,
        budget,
        problems,
        refusal=None,
        accuracy=right / len(runs),
        accuracy_low=low,
        accuracy_high=high,
        output_error=mean(lambda run: run.measurement.output_error.mean()),
        kl=mean(lambda run: run.measurement.kl.mean()),
        agreement=mean(lambda run: run.measurement.agreement.mean()),
        entries=mean(lambda run: run.measurement.entries.max()),
        kilobytes=mean(lambda run: run.measurement.nbytes.max()) / 1024,
        average_bits=mean(lambda run: run.measurement.average_bits[-1]),
        payload_bits=mean(lambda run: run.measurement.payload_bits[-1]),
        milliseconds_per_token=1000 * mean(lambda run: run.seconds_per_token),
    )
