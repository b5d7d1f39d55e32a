"""A method's attempts at problems: what comparisons and sweeps have in common."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from kvlab.fast.lab.evaluate.backends import Backend
from kvlab.fast.lab.evaluate.tasks import Problem, Task
from kvlab.reference.measure import Measurement

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Question:
    """A problem as token ids."""

    number: int
    problem: Problem
    prompt: list[int]
    stop: int
    """Token that ends an answer."""
    limit: int
    """Tokens after which an answer is cut: a quarter more than the solution has."""


@dataclass(frozen=True)
class Answered:
    """A question, and what the full cache makes of it: the yardstick of a measurement."""

    question: Question
    answer: list[int]
    logits: np.ndarray


@dataclass(frozen=True)
class Attempt:
    """What one method at one budget wrote to one question."""

    solved: bool
    answer_correct: bool
    tokens: int
    """Tokens that were written."""
    seconds_per_token: float
    """Of the whole batch."""


def ask(backend: Backend, numbered: Sequence[tuple[int, Problem]]) -> list[Question]:
    """Turn numbered problems into token ids."""
    questions = []
    for number, problem in numbered:
        solution = backend.encode(problem.solution)
        prompt = backend.encode(problem.prompt)
        questions.append(Question(number, problem, prompt, solution[-1], len(solution) * 5 // 4))
    return questions


def answer_fully(backend: Backend, questions: Sequence[Question]) -> list[Answered]:
    """Let the full cache answer, and keep its logits along its answers."""
    prompts = [question.prompt for question in questions]
    answers, _ = write(backend, questions, "full", None)
    measured = backend.measure("full", None, prompts, answers)
    return [
        Answered(question, answer, logits)
        for question, answer, (_, logits) in zip(questions, answers, measured, strict=True)
    ]


def write(
    backend: Backend, questions: Sequence[Question], spec: str, budget: int | None
) -> tuple[list[list[int]], float]:
    """Write an answer to every question, cut at its limit; return the seconds per token too.

    Raises:
        ValueError: if the method does not fit a question.
    """
    prompts = [question.prompt for question in questions]
    limit, stop = max(question.limit for question in questions), questions[0].stop
    written, seconds = backend.write(spec, budget, prompts, limit, stop)
    cut = [tokens[: each.limit] for tokens, each in zip(written, questions, strict=True)]
    return cut, seconds


def attempt(
    backend: Backend, task: Task, questions: Sequence[Question], spec: str, budget: int | None
) -> list[Attempt]:
    """Answer questions together and grade the answers.

    Raises:
        ValueError: if the method does not fit a question.
    """
    written, seconds = write(backend, questions, spec, budget)
    attempts = []
    for question, tokens in zip(questions, written, strict=True):
        outcome = task.grade(question.problem, backend.decode(tokens))
        attempts.append(Attempt(outcome.solved, outcome.answer_correct, len(tokens), seconds))
    return attempts


def measure(
    backend: Backend, answered: Sequence[Answered], spec: str, budget: int | None
) -> list[Measurement]:
    """Measure a method along the full cache's answers.

    Raises:
        ValueError: if the method does not fit a question.
    """
    measured = backend.measure(
        spec,
        budget,
        [each.question.prompt for each in answered],
        [each.answer for each in answered],
        [each.logits for each in answered],
    )
    return [measurement for measurement, _ in measured]


def together_or_alone(
    items: Sequence[Item], work: Callable[[Sequence[Item]], list[Result]]
) -> list[Result | ValueError]:
    """Work on all items at once or, if that is refused, on each alone; a refusal is its result."""
    try:
        return [*work(items)]
    except ValueError as error:
        if len(items) == 1:
            return [error]
        return [found for item in items for found in together_or_alone([item], work)]
