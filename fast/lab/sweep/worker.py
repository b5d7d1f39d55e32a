"""Does jobs: a method answers problems, and is measured on some of them.

A worker knows nothing of other jobs, of files or of clusters. Engines hand jobs to workers: in this
process, in several processes, or (`cluster`) on a cluster.
"""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from multiprocessing import active_children, get_context
from statistics import fmean
from traceback import format_exc
from typing import Any

import numpy as np

from kvlab.fast.lab.evaluate.backends import Backend, Request, load_backend
from kvlab.fast.lab.evaluate.tasks import AskedAfter, Problem, Task, find_task
from kvlab.fast.lab.points import Row
from kvlab.fast.lab.sweep.plan import ORACLE, Job
from kvlab.fast.models import model_location
from kvlab.reference import methods
from kvlab.reference.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Found(Row):
    """One method at one budget on one problem: a row of the results."""

    problem: int
    prompt_tokens: int
    solved: bool | None = None
    answer_correct: bool | None = None
    tokens: int | None = None
    """Tokens that were written."""
    output_error: float | None = None
    """Mean over the tokens of the full cache's answer. This figure and the next ones are None where
    nothing was measured."""
    kl: float | None = None
    agreement: float | None = None
    entries: float | None = None
    """Most entries per KV head, mean over the layers."""
    nbytes: float | None = None
    """Most bytes of keys and values."""
    average_bits: float | None = None
    """Bits per element of the full cache, at the last token."""
    payload_bits: float | None = None
    seconds_per_token: float | None = None
    nbytes_over_tokens: tuple[float, ...] = field(default=(), repr=False)
    """Bytes of keys and values after each token of the full cache's answer; no data set keeps
    them."""


@dataclass(frozen=True)
class Failure:
    """Why a job was given up; the job counts as missing, and the next run tries it again."""

    reason: str
    trace: str = ""
    """Traceback of the error."""


Result = tuple[Job, list[Found] | Failure]

Figures = Mapping[str, Any]
"""Some of the fields of `Found`."""


@dataclass(frozen=True)
class Question:
    """A problem as token ids."""

    number: int
    problem: Problem
    prompt: list[int]
    solution: list[int]
    shared: int = 0
    """Tokens at the start of the prompt that are compressed before the others are known."""

    @property
    def stop(self) -> int | None:
        """Last token of the solution, which ends an answer; None if the solution has it twice."""
        *others, last = self.solution
        return None if last in others else last

    @property
    def limit(self) -> int:
        """Tokens after which an answer is cut: a quarter more than the solution has."""
        return len(self.solution) * 5 // 4


def rows_of(job: Job, found: Sequence[Found]) -> list[dict[str, Any]]:
    """Return what a job found as plain rows, which also say what job they belong to."""
    shared = {"job": job.id, "model": job.model, "task": job.task, "seed": job.seed}
    return [{**shared, **vars(each)} for each in found]


class Worker:
    """Keeps the model and the questions that it used last, and what the full cache answered."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Any, Any]] = {}

    def attempt(self, job: Job) -> list[Found] | Failure:
        """Do a job; an error becomes a `Failure`, so that the other jobs go on."""
        try:
            return self.run(job)
        except Exception as error:
            return Failure(f"{type(error).__name__}: {error}", format_exc())

    def run(self, job: Job) -> list[Found]:
        """Do a job; the same job gives the same rows, except for the time that it took."""
        questions = self._questions(job)
        figures = {q.number: {"refusal": why} for q in questions if (why := _refusal(job, q))}
        figures |= _together_or_alone(
            [q for q in questions if q.number not in figures], partial(self._attempt, job)
        )
        measured = _together_or_alone(
            [q for q in questions[: job.measured] if "refusal" not in figures[q.number]],
            partial(self._measure, job),
        )
        for number, own in measured.items():
            figures[number] = own if "refusal" in own else {**figures[number], **own}
        return [
            Found(
                method=job.method,
                budget=job.budget,
                problem=question.number,
                prompt_tokens=len(question.prompt),
                **figures[question.number],
            )
            for question in questions
        ]

    def _once(self, kind: str, key: Any, make: Callable[[], Any]) -> Any:
        """Return what was made last if the key is the same; else free it, and make another one."""
        if kind not in self._kept or self._kept[kind][0] != key:
            self._kept.pop(kind, None)
            self._kept[kind] = key, make()
        return self._kept[kind][1]

    def _backend(self, job: Job) -> Backend:
        name = (job.backend, model_location(job.model))
        return self._once("model", name, lambda: load_backend(*name))

    def _questions(self, job: Job) -> list[Question]:
        task, encode = find_task(job.task), self._backend(job).encode

        def draw() -> list[Question]:
            drawn = task.problems(job.first + job.count, job.seed)[job.first :]
            return [_question(n, each, encode, task) for n, each in enumerate(drawn, job.first)]

        key = (job.fingerprint, job.backend, job.task, job.seed, job.first, job.count)
        return self._once("questions", key, draw)

    def _full_answers(self, job: Job) -> dict[int, tuple[list[int], np.ndarray]]:
        """Return what the full cache answers to what is measured, and its logits, by number."""
        questions = self._questions(job)[: job.measured]

        def answer() -> dict[int, tuple[list[int], np.ndarray]]:
            backend, full = self._backend(job), methods.get("full")
            answers, _ = _write(backend, full, questions)
            measured = backend.measure(full, [each.prompt for each in questions], answers)
            return {
                question.number: (answer, logits)
                for question, answer, (_, logits) in zip(questions, answers, measured, strict=True)
            }

        key = (job.fingerprint, job.backend, job.task, job.seed, job.first, job.measured)
        return self._once("answers", key, answer)

    def _attempt(self, job: Job, questions: Sequence[Question]) -> list[Figures]:
        """Answer questions in one batch, and grade the answers."""
        policy, backend, task = _policy(job, questions), self._backend(job), find_task(job.task)
        written, seconds = _write(backend, policy, questions, job.to_first_error, job.block_size)
        found = []
        for question, tokens in zip(questions, written, strict=True):
            outcome = task.grade(question.problem, backend.decode(tokens))
            known = outcome.solved or not job.to_first_error
            found.append(
                {
                    "solved": outcome.solved,
                    "answer_correct": outcome.answer_correct if known else None,
                    "tokens": len(tokens) if known else None,
                    "seconds_per_token": seconds,
                }
            )
        return found

    def _measure(self, job: Job, questions: Sequence[Question]) -> list[Figures]:
        """Measure along the full cache's answers."""
        answers = self._full_answers(job)
        tokens, logits = zip(*(answers[each.number] for each in questions), strict=True)
        prompts = [each.prompt for each in questions]
        found = self._backend(job).measure(_policy(job, questions), prompts, tokens, logits)
        return [
            {
                "output_error": float(measured.output_error.mean()),
                "kl": float(measured.kl.mean()),
                "agreement": float(measured.agreement.mean()),
                "entries": float(measured.entries.max()),
                "nbytes": float(measured.nbytes.max()),
                "average_bits": float(measured.average_bits[-1]),
                "payload_bits": float(measured.payload_bits[-1]),
                "nbytes_over_tokens": tuple(measured.nbytes.tolist()),
            }
            for measured, _ in found
        ]


def _question(
    number: int, problem: Problem, encode: Callable[[str], list[int]], task: Task
) -> Question:
    """Put a problem into token ids; a text that is compressed first is encoded by itself."""
    solution = encode(problem.solution)
    if not task.asks_after:
        return Question(number, problem, encode(problem.prompt), solution)
    assert isinstance(problem, AskedAfter)
    context = encode(problem.context)
    prompt = [*context, *encode(problem.question)]
    return Question(number, problem, prompt, solution, len(context))


def _refusal(job: Job, question: Question) -> str | None:
    """Say why a method cannot take a prompt, without running the method."""
    if job.method != ORACLE:
        try:
            methods.get(job.seeded, job.budget).check(question.shared or len(question.prompt))
        except ValueError as error:
            return str(error)
    return None


def _policy(job: Job, questions: Sequence[Question]) -> Policy:
    if job.method != ORACLE:
        return methods.get(job.seeded, job.budget)
    from kvlab.fast.lab.evaluate.oracle import oracle_policy

    task = find_task(job.task)
    assert job.budget is not None and task.recent is not None
    return oracle_policy([task.next_use(q.problem) for q in questions], job.budget, task.recent)


def _write(
    backend: Backend,
    policy: Policy,
    questions: Sequence[Question],
    to_first_error: bool = False,
    block_size: int | None = None,
) -> tuple[list[list[int]], float]:
    """Write an answer to every question, cut at its limit; return the seconds per token too."""
    limit, stop = max(question.limit for question in questions), questions[0].stop
    cut, seconds = [], []
    for text, group in groupby(questions, key=lambda each: each.prompt[: each.shared]):
        some = list(group)
        request = Request(
            prompts=[each.prompt[each.shared :] for each in some],
            limit=limit,
            stop=stop,
            solutions=[each.solution for each in some] if to_first_error else None,
            block_size=block_size,
            text=text,
        )
        written, took = backend.write(policy, request)
        cut += [tokens[: each.limit] for tokens, each in zip(written, some, strict=True)]
        seconds += [took] * len(some)
    return cut, fmean(seconds)


def _together_or_alone(
    questions: Sequence[Question], work: Callable[[Sequence[Question]], list[Figures]]
) -> dict[int, Figures]:
    """Return figures by number: of all questions at once or, if that is refused, of each alone."""
    if not questions:
        return {}
    try:
        return {q.number: own for q, own in zip(questions, work(questions), strict=True)}
    except ValueError as error:
        if len(questions) == 1:
            return {questions[0].number: {"refusal": str(error)}}
    return {n: own for q in questions for n, own in _together_or_alone([q], work).items()}


# --- engines -------------------------------------------------------------------------------------

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Engine(ABC):
    """Does jobs, in any order."""

    @abstractmethod
    def results(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Yield every job once, as soon as it is done or given up.

        Closing the iterator stops what is running.
        """


class LocalEngine(Engine):
    """One job after the other, in this process."""

    def results(self, jobs: Sequence[Job]) -> Iterator[Result]:
        worker = Worker()
        for job in jobs:
            yield job, worker.attempt(job)


class ProcessEngine(Engine):
    """Processes of this machine, each with one thread and a model of its own.

    With one thread each, the times of methods are comparable.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def results(self, jobs: Sequence[Job]) -> Iterator[Result]:
        for variable in THREADS:
            os.environ.setdefault(variable, "1")
        others = set(active_children())
        with ProcessPoolExecutor(self.workers, get_context("spawn"), _start) as pool:
            futures = {pool.submit(_run, job): job for job in jobs}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BaseException:  # Ctrl-C, or nobody wants the other results: jobs take minutes
                for process in set(active_children()) - others:
                    process.terminate()
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


_workers: list[Worker] = []


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    _workers.append(Worker())


def _run(job: Job) -> list[Found] | Failure:
    return _workers[0].attempt(job)
