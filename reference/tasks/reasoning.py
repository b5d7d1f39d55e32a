"""Chained arithmetic: problems that are solved by writing out every step.

A problem states facts and definitions, then asks for the last variable; the solution works it out
line by line, modulo 10::

    \\n c9 ; z3 ; l9 ; c + l = . f ; f - f = . v ; v - f = . j ; ? j \\n    prompt
    c9 + l9 = 8 f8 ; f8 - f8 = 0 v0 ; v0 - f8 = 2 j2 ; # 2 \\n          solution

Every step has to find the next definition in the prompt and the value of both operands, stated
in the prompt or written in an earlier step, however long ago: tokens become important again at
irregular intervals.
"""

import string
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from kvlab.reference.checks import check_at_least, check_between
from kvlab.reference.tasks import Grade

NAMES = tuple(string.ascii_lowercase)
OPERATORS = ("+", "-")
END = "\n"
"""Opens a problem, separates prompt from solution, and ends the solution."""

MAX_VARIABLES = len(NAMES)
HELD_OUT_VARIABLES = (16, 18, 20)
"""Numbers of variables of a held-out problem: 183, 211 or 239 tokens."""

FACTS = 4
"""Variables whose value is stated."""

_TRAINING, _HELD_OUT = 0, 1


@dataclass(frozen=True)
class Problem:
    """One problem and its written-out solution, as texts of tokens separated by single spaces."""

    prompt: str
    solution: str
    answer: int
    variables: int

    @property
    def text(self) -> str:
        """Prompt and solution."""
        return f"{self.prompt} {self.solution}"

    @property
    def tokens(self) -> int:
        """Tokens of prompt and solution together."""
        return len(self.text.split(" "))


def vocabulary() -> tuple[str, ...]:
    """Return every token of the task; a fact such as ``c9`` is one token."""
    facts = tuple(f"{name}{digit}" for name in NAMES for digit in range(10))
    digits = tuple(str(digit) for digit in range(10))
    return (END, ";", "?", "#", "=", ".", *OPERATORS, *digits, *NAMES, *facts)


def held_out(count: int, seed: int = 0, variables: int | None = None) -> list[Problem]:
    """Return problems that training never draws; the first are the same for every ``count``.

    Without ``variables``, their number is drawn from `HELD_OUT_VARIABLES`.
    """
    check_at_least(0, count=count, seed=seed)
    rng = np.random.default_rng([_HELD_OUT, seed])
    return [
        chain(rng, int(rng.choice(HELD_OUT_VARIABLES)) if variables is None else variables, FACTS)
        for _ in range(count)
    ]


def training_stream(seed: int) -> np.random.Generator:
    """Return the random stream of a training run."""
    return np.random.default_rng([_TRAINING, seed])


def chain(rng: np.random.Generator, variables: int, facts: int) -> Problem:
    """Draw a problem with ``variables`` variables of which ``facts`` are stated."""
    if not 1 <= facts < variables <= MAX_VARIABLES:
        raise ValueError(
            f"facts = {facts} and variables = {variables} must satisfy "
            f"1 <= facts < variables <= {MAX_VARIABLES}"
        )
    names = [NAMES[i] for i in rng.permutation(len(NAMES))[:variables]]
    values = [int(value) for value in rng.integers(0, 10, size=facts)]
    stated = [f"{name}{value} ;" for name, value in zip(names, values, strict=False)]
    steps = []
    for result in range(facts, variables):
        left, right = (int(operand) for operand in rng.integers(0, result, size=2))
        operator = OPERATORS[int(rng.integers(len(OPERATORS)))]
        value = apply(operator, values[left], values[right])
        stated.append(f"{names[left]} {operator} {names[right]} = . {names[result]} ;")
        steps.append(
            f"{names[left]}{values[left]} {operator} {names[right]}{values[right]} "
            f"= {value} {names[result]}{value} ;"
        )
        values.append(value)
    prompt = " ".join([END, *stated, f"? {names[-1]}", END])
    return Problem(prompt, " ".join([*steps, f"# {values[-1]}", END]), values[-1], variables)


def recall(rng: np.random.Generator, facts: int) -> Problem:
    """Draw a pure recall problem: the facts have to be written down again in order."""
    check_between(1, MAX_VARIABLES, facts=facts)
    names = [NAMES[i] for i in rng.permutation(len(NAMES))[:facts]]
    values = [int(value) for value in rng.integers(0, 10, size=facts)]
    stated = " ".join(f"{name}{value} ;" for name, value in zip(names, values, strict=True))
    prompt = " ".join([END, stated, "?", END])
    return Problem(prompt, f"{stated} # {values[-1]} {END}", values[-1], facts)


def drill(rng: np.random.Generator, steps: int) -> Problem:
    """Draw unrelated steps of computation: only the digit after ``=`` can be foreseen."""
    check_at_least(1, steps=steps)
    text, value = [], 0
    for _ in range(steps):
        left, right, result = (NAMES[int(i)] for i in rng.integers(0, len(NAMES), size=3))
        x, y = (int(value) for value in rng.integers(0, 10, size=2))
        operator = OPERATORS[int(rng.integers(len(OPERATORS)))]
        value = apply(operator, x, y)
        text.append(f"{left}{x} {operator} {right}{y} = {value} {result}{value} ;")
    return Problem(f"{END} {END}", " ".join([*text, f"# {value} {END}"]), value, 0)


def apply(operator: str, left: int, right: int) -> int:
    """Compute modulo 10."""
    return (left + right if operator == "+" else left - right) % 10


def grade(problem: Problem, text: str) -> Grade:
    """Compare a written solution with the right one, step by step."""
    expected, written = problem.solution.strip(" "), text.strip(" ")
    expected_steps, written_steps = expected.split(" ; "), written.split(" ; ")
    pairs = zip(expected_steps[:-1], written_steps, strict=False)
    correct = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    tail = written_steps[-1].split(" ")
    return Grade(
        answer_correct=tail[:2] == ["#", str(problem.answer)],
        solution_correct=written.rstrip(" \n") == expected.rstrip(" \n"),
        correct_steps=correct,
    )
