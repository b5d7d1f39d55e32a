"""Does one job; knows nothing of other jobs, of files or of clusters."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvlab.fast.lab.evaluate.attempts import (
    Answered,
    Attempt,
    Question,
    answer_fully,
    ask,
    attempt,
    measure,
    together_or_alone,
)
from kvlab.fast.lab.evaluate.backends import Backend, load_backend
from kvlab.fast.lab.evaluate.tasks import find_task
from kvlab.fast.lab.sweep.configuration import model_location
from kvlab.fast.lab.sweep.jobs import Job
from kvlab.reference import methods
from kvlab.reference.measure import Measurement


@dataclass(frozen=True)
class Found:
    """One method at one budget on one problem: a row of the data set."""

    problem: int
    prompt_tokens: int
    refusal: str | None
    """Why the method does not fit the problem; solved and the like are then None."""
    solved: bool | None = None
    answer_correct: bool | None = None
    tokens: int | None = None
    """Tokens that were written."""
    output_error: float | None = None
    """Mean over the tokens of the full cache's answer; this and what follows only where
    measured."""
    kl: float | None = None
    agreement: float | None = None
    entries: float | None = None
    """Most per KV head, mean over the layers."""
    nbytes: float | None = None
    """Most bytes of keys and values."""
    average_bits: float | None = None
    """Per element of the full cache, at the last token."""
    payload_bits: float | None = None
    seconds_per_token: float | None = None


class Worker:
    """Keeps the model that it used last, and what its full cache answered."""

    def __init__(self) -> None:
        self._loaded: tuple[tuple[str, str], Backend] | None = None
        self._answers: dict[tuple[Any, ...], list[Answered]] = {}

    def run(self, job: Job) -> list[Found]:
        """Do a job; the same job gives the same rows, but for the time it took."""
        backend = self.backend(job)
        task = find_task(job.task)
        drawn = list(enumerate(task.problems(job.first + job.count, job.seed)))[job.first :]
        questions = ask(backend, drawn)
        refusals = {q.number: reason for q in questions if (reason := misfit(job, q))}
        fitting = [question for question in questions if question.number not in refusals]
        attempts: dict[int, Attempt | ValueError] = {}
        if fitting:
            made = together_or_alone(
                fitting, lambda some: attempt(backend, task, some, job.seeded, job.budget)
            )
            attempts = {question.number: each for question, each in zip(fitting, made, strict=True)}
        measured = self.measurements(job, questions[: job.measured], refusals)
        return [
            _found(question, refusals.get(question.number), attempts, measured)
            for question in questions
        ]

    def measurements(
        self, job: Job, questions: Sequence[Question], refusals: dict[int, str]
    ) -> dict[int, Measurement]:
        """Measure the questions that fit, by number."""
        if not questions:
            return {}
        answered = [
            each for each in self.answers(job, questions) if each.question.number not in refusals
        ]
        if not answered:
            return {}
        backend = self.backend(job)
        found = together_or_alone(
            answered, lambda some: measure(backend, some, job.seeded, job.budget)
        )
        return {
            each.question.number: result
            for each, result in zip(answered, found, strict=True)
            if isinstance(result, Measurement)
        }

    def backend(self, job: Job) -> Backend:
        """Return the job's model, loaded once for all jobs on it that follow each other."""
        name = (job.backend, model_location(job.model))
        if self._loaded is None or self._loaded[0] != name:
            self._loaded = None  # frees the model before the next is loaded
            self._answers.clear()
            self._loaded = (name, load_backend(*name))
        return self._loaded[1]

    def answers(self, job: Job, questions: Sequence[Question]) -> list[Answered]:
        """Return what the full cache answers, once for all methods."""
        key = (job.task, job.seed, job.first, len(questions))
        if key not in self._answers:
            self._answers.clear()
            self._answers[key] = answer_fully(self.backend(job), questions)
        return self._answers[key]


def misfit(job: Job, question: Question) -> str | None:
    """Say why a method cannot take a prompt, without running it."""
    try:
        methods.get(job.seeded, job.budget).check(len(question.prompt))
    except ValueError as error:
        return str(error)
    return None


def _found(
    question: Question,
    refusal: str | None,
    attempts: dict[int, Attempt | ValueError],
    measured: dict[int, Measurement],
) -> Found:
    made = attempts.get(question.number)
    if not isinstance(made, Attempt):
        return Found(question.number, len(question.prompt), refusal or str(made))
    return Found(
        problem=question.number,
        prompt_tokens=len(question.prompt),
        refusal=None,
        **asdict(made),
        **_figures(measured.get(question.number)),
    )


def _figures(measured: Measurement | None) -> dict[str, Any]:
    if measured is None:
        return {}
    return {
        "output_error": float(measured.output_error.mean()),
        "kl": float(measured.kl.mean()),
        "agreement": float(measured.agreement.mean()),
        "entries": float(measured.entries.max()),
        "nbytes": float(measured.nbytes.max()),
        "average_bits": float(measured.average_bits[-1]),
        "payload_bits": float(measured.payload_bits[-1]),
    }
