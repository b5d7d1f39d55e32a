"""Does one job: a method answers problems, and is measured on some of them.

A worker knows nothing of other jobs, of files or of clusters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from kvlab.fast.lab.evaluate.backends import Asked, Backend, load_backend
from kvlab.fast.lab.evaluate.tasks import AskedAfter, Problem, find_task
from kvlab.fast.lab.sweep.configuration import ORACLE
from kvlab.fast.lab.sweep.jobs import Job
from kvlab.fast.models import model_location
from kvlab.reference import methods
from kvlab.reference.measure import Measurement

Item = TypeVar("Item")


@dataclass(frozen=True)
class Found:
    """One method at one budget on one problem: a row of the results."""

    problem: int
    prompt_tokens: int
    refusal: str | None
    """Why the method does not fit the problem; solved and the figures are then None."""
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
class Question:
    """A problem as token ids."""

    number: int
    problem: Problem
    prompt: list[int]
    solution: list[int]
    shared: int = 0
    """Tokens at the start of the prompt that are compressed before the others are known."""

    @property
    def text(self) -> list[int]:
        """What is compressed before the question is known."""
        return self.prompt[: self.shared]

    @property
    def stop(self) -> int | None:
        """Last token of the solution, which ends an answer; None if the solution has it twice."""
        *others, last = self.solution
        return None if last in others else last

    @property
    def limit(self) -> int:
        """Tokens after which an answer is cut: a quarter more than the solution has."""
        return len(self.solution) * 5 // 4

    def refused(self, reason: str) -> Found:
        """Return the row of a method that cannot take this problem."""
        return Found(self.number, len(self.prompt), reason)


@dataclass(frozen=True)
class FullAnswer:
    """The full cache's answer to a question, with which measurements compare."""

    question: Question
    tokens: list[int]
    logits: np.ndarray


def rows_of(job: Job, found: Sequence[Found]) -> list[dict[str, Any]]:
    """Return what a job found as plain rows, which also say what job they belong to."""
    shared = {
        "job": job.id,
        "model": job.model,
        "task": job.task,
        "seed": job.seed,
        "method": job.method,
        "budget": job.budget,
    }
    return [{**shared, **vars(each)} for each in found]


class Worker:
    """Keeps the model and the questions that it used last, and what the full cache answered."""

    def __init__(self) -> None:
        self._loaded: tuple[tuple[str, str], Backend] | None = None
        self._questions: dict[tuple[Any, ...], list[Question]] = {}
        self._answers: dict[tuple[Any, ...], list[FullAnswer]] = {}

    def run(self, job: Job) -> list[Found]:
        """Do a job; the same job gives the same rows, except for the time that it took."""
        questions = self.questions(job)
        found = self.attempts(job, questions)
        found |= self.measurements(job, questions[: job.measured], found)
        return [found[question.number] for question in questions]

    def backend(self, job: Job) -> Backend:
        """Return the job's model, loaded once for all jobs on it that follow each other."""
        name = (job.backend, model_location(job.model))
        if self._loaded is None or self._loaded[0] != name:
            self._loaded = None  # frees the model before the next one is loaded
            self._questions.clear()
            self._answers.clear()
            self._loaded = (name, load_backend(*name))
        return self._loaded[1]

    def questions(self, job: Job) -> list[Question]:
        """Draw the job's problems, as token ids, once for all jobs that follow each other."""
        encode = self.backend(job).encode
        key = (job.task, job.seed, job.first, job.count)
        if key not in self._questions:
            task = find_task(job.task)
            drawn = task.problems(job.first + job.count, job.seed)
            self._questions = {
                key: [
                    question(number, problem, encode, task.asks_after)
                    for number, problem in enumerate(drawn[job.first :], start=job.first)
                ]
            }
        return self._questions[key]

    def attempts(self, job: Job, questions: Sequence[Question]) -> dict[int, Found]:
        """Answer the questions that the method fits, and grade the answers, by number."""
        refusals = [
            each.refused(reason) for each in questions if (reason := refusal_reason(job, each))
        ]
        rows = {each.problem: each for each in refusals}
        fitting = [question for question in questions if question.number not in rows]
        made = together_or_alone(
            fitting, lambda some: self.attempt_together(job, some), Question.refused
        )
        return rows | {each.problem: each for each in made}

    def attempt_together(self, job: Job, questions: Sequence[Question]) -> list[Found]:
        """Answer questions in one batch, and grade the answers.

        Raises:
            ValueError: if the method does not fit a question.
        """
        backend, task = self.backend(job), find_task(job.task)
        written, seconds = write(
            backend, questions, *asked(job, questions), job.to_first_error, job.block_size
        )
        rows = []

        def known(solved: bool) -> bool:
            return solved or not job.to_first_error

        for question, tokens in zip(questions, written, strict=True):
            outcome = task.grade(question.problem, backend.decode(tokens))
            rows.append(
                Found(
                    question.number,
                    len(question.prompt),
                    refusal=None,
                    solved=outcome.solved,
                    answer_correct=outcome.answer_correct if known(outcome.solved) else None,
                    tokens=len(tokens) if known(outcome.solved) else None,
                    seconds_per_token=seconds,
                )
            )
        return rows

    def measurements(
        self, job: Job, questions: Sequence[Question], found: Mapping[int, Found]
    ) -> dict[int, Found]:
        """Add figures to the rows of these questions, measured along the full cache's answers."""
        backend = self.backend(job)
        answers = [
            each
            for each in self.answers(job, questions)
            if found[each.question.number].refusal is None
        ]

        def measure(some: Sequence[FullAnswer]) -> list[Found]:
            prompts = [each.question.prompt for each in some]
            tokens, logits = [each.tokens for each in some], [each.logits for each in some]
            method = asked(job, [each.question for each in some])
            measured = backend.measure(*method, prompts, tokens, logits)
            return [
                replace(found[each.question.number], **figures(measurement))
                for each, (measurement, _) in zip(some, measured, strict=True)
            ]

        made = together_or_alone(answers, measure, lambda each, why: each.question.refused(why))
        return {each.problem: each for each in made}

    def answers(self, job: Job, questions: Sequence[Question]) -> list[FullAnswer]:
        """Return what the full cache answers, once for all methods."""
        if not questions:
            return []
        key = (job.task, job.seed, job.first, len(questions))
        if key not in self._answers:
            self._answers.clear()
            self._answers[key] = answer_fully(self.backend(job), questions)
        return self._answers[key]


def question(
    number: int, problem: Problem, encode: Callable[[str], list[int]], asks_after: bool
) -> Question:
    """Put a problem into token ids; with ``asks_after`` its context is encoded by itself."""
    solution = encode(problem.solution)
    if not asks_after:
        return Question(number, problem, encode(problem.prompt), solution)
    assert isinstance(problem, AskedAfter)
    context = encode(problem.context)
    prompt = [*context, *encode(problem.question)]
    return Question(number, problem, prompt, solution, len(context))


def asked(job: Job, questions: Sequence[Question]) -> tuple[Asked, int | None]:
    """Return the method and the budget of a job, for a batch of questions."""
    if job.method != ORACLE:
        return job.seeded, job.budget
    from kvlab.fast.lab.evaluate.oracle import oracle_policy

    task = find_task(job.task)
    assert job.budget is not None and task.recent is not None
    next_uses = [task.next_use(each.problem) for each in questions]
    return oracle_policy(next_uses, job.budget, task.recent), None


def refusal_reason(job: Job, question: Question) -> str | None:
    """Say why a method cannot take a prompt, without running the method."""
    if job.method == ORACLE:
        return None
    try:
        methods.get(job.seeded, job.budget).check(question.shared or len(question.prompt))
    except ValueError as error:
        return str(error)
    return None


def write(
    backend: Backend,
    questions: Sequence[Question],
    method: Asked,
    budget: int | None,
    to_first_error: bool = False,
    block_size: int | None = None,
) -> tuple[list[list[int]], float]:
    """Write an answer to every question, cut at its limit; return the seconds per token too.

    Args:
        backend: writes the answers.
        questions: to answer, in one batch.
        method: registry syntax, or a policy.
        budget: entries, where the method takes one.
        to_first_error: end an answer with its first token that is not that of the solution.
        block_size: tokens per block of a prompt; None reads a prompt at once.

    Raises:
        ValueError: if the method does not fit a question.
    """
    limit, stop = max(question.limit for question in questions), questions[0].stop
    cut, seconds = [], []
    for text, group in groupby(questions, key=lambda question: question.text):
        some = list(group)
        prompts = [question.prompt[question.shared :] for question in some]
        solutions = [question.solution for question in some] if to_first_error else None
        given = (limit, stop, solutions, block_size)
        if text:
            written, took = backend.write_after(method, budget, text, prompts, *given)
        else:
            written, took = backend.write(method, budget, prompts, *given)
        cut += [tokens[: each.limit] for tokens, each in zip(written, some, strict=True)]
        seconds += [took] * len(some)
    return cut, fmean(seconds)


def answer_fully(backend: Backend, questions: Sequence[Question]) -> list[FullAnswer]:
    """Let the full cache answer, and keep its logits along its answers."""
    prompts = [question.prompt for question in questions]
    answers, _ = write(backend, questions, "full", None)
    measured = backend.measure("full", None, prompts, answers)
    return [
        FullAnswer(question, answer, logits)
        for question, answer, (_, logits) in zip(questions, answers, measured, strict=True)
    ]


def together_or_alone(
    items: Sequence[Item],
    work: Callable[[Sequence[Item]], list[Found]],
    refused: Callable[[Item, str], Found],
) -> list[Found]:
    """Work on all items at once or, if that is refused, on each alone.

    Args:
        items: what to work on.
        work: returns a row for each item, or raises ValueError.
        refused: makes a row of an item and the reason of its ValueError.
    """
    if not items:
        return []
    try:
        return work(items)
    except ValueError as error:
        if len(items) == 1:
            return [refused(items[0], str(error))]
        return [row for item in items for row in together_or_alone([item], work, refused)]


def figures(measured: Measurement) -> dict[str, Any]:
    """Sum a measurement up."""
    return {
        "output_error": float(measured.output_error.mean()),
        "kl": float(measured.kl.mean()),
        "agreement": float(measured.agreement.mean()),
        "entries": float(measured.entries.max()),
        "nbytes": float(measured.nbytes.max()),
        "average_bits": float(measured.average_bits[-1]),
        "payload_bits": float(measured.payload_bits[-1]),
        "nbytes_over_tokens": tuple(measured.nbytes.tolist()),
    }
