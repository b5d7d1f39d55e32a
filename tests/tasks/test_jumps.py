import re
from itertools import islice

import numpy as np
import pytest

from kvlab.reference.tasks import Grade, jumps
from kvlab.reference.tasks.jumps import SIZES, Size
from kvlab.reference.tasks.jumps_oracle import sources

SHORT = Size(fewest=3, most=9)
RESTATED = Size(fewest=3, most=9, copies=3)
sizes = [SHORT, RESTATED, Size(1, 2, 1, 4), Size(1, 8, 20, 30), Size(2, 5, 30, 40), Size(3)]


def solve(prompt: str, copies: int) -> str:
    """Work a prompt out independently, from its text alone."""
    program, start = prompt.removeprefix("\n ").split(" \n ")
    values = {name: int(digit) for name, digit in re.findall(r"(?<!\S)([a-z])(\d)", program)}
    lines = {
        label: (x, y) for label, x, y in re.findall(r"([LMN]\d) (.) \. \+ (.) \. = \. \.", program)
    }
    tokens, label = [], start
    while label != "L0":
        x, y = lines[label]
        a, b = values[x], values[y]
        values[x] = (a + b) % 10
        label = f"{'LMN'['abcdefghijklmnopqrstuvwx'.index(x) // 8]}{values[x]}"
        results = [f"{x}{values[x]}"] * copies
        tokens += [x, f"{x}{a}", "+", y, f"{y}{b}", "=", f"{values[x]}", *results, label]
    return " ".join([*tokens, "\n"])


@pytest.mark.parametrize("size", sizes)
def test_solutions_are_right(size):
    for problem in islice(jumps.draw(np.random.default_rng(0), size), 20):
        assert problem.solution == solve(problem.prompt, size.copies)
        assert problem.tokens == len(problem.text.split(" "))
        assert set(problem.text.split(" ")) <= set(jumps.vocabulary())
        assert size.fewest <= len(problem.steps) <= size.most
        assert len(problem.lines) == size.lines == len({line.label for line in problem.lines})
        assert len(problem.registers) == size.groups * size.registers
        assert jumps.grade(problem, problem.solution) == Grade(True, True, len(problem.steps))


def test_sizes_have_the_tokens_that_they_are_called_by():
    for tokens, size in SIZES.items():
        drawn = [problem.tokens for problem in jumps.held_out(5, size=size)]
        assert all(0.8 * tokens < one < 1.2 * tokens for one in drawn)


def test_a_program_worked_out_by_hand():
    lines = [jumps.Line(8, 1, 2), jumps.Line(3, 0, 1), jumps.Line(5, 1, 0)]
    problem = jumps.run([(0, 2), (1, 3), (2, 2)], lines, start=3)
    assert problem.prompt == (
        "\n a2 b3 c2 L8 b . + c . = . . L3 a . + b . = . . L5 b . + a . = . . \n L3"
    )
    assert problem.solution == (
        "a a2 + b b3 = 5 a5 L5 b b3 + a a5 = 8 b8 L8 b b8 + c c2 = 0 b0 L0 \n"
    )


@pytest.mark.parametrize("size", [SHORT, RESTATED])
def test_what_a_run_copies_stands_where_the_oracle_keeps_it(size):
    for problem in jumps.held_out(5, size=size):
        text, pairs = problem.text.split(" "), sources(problem)
        for step in problem.steps:
            own, pairs = pairs[: 2 + problem.step], pairs[2 + problem.step :]
            assert all(text[query + 1] == text[entry] for query, entry in own[:2])
            label, x, _, _, y, *_ = (text[entry] for _, entry in own[2:])
            names = jumps.REGISTERS[step.line.x], jumps.REGISTERS[step.line.y]
            assert (label, x, y) == (jumps.LABELS[step.line.label], *names)
        assert not pairs


def test_training_never_draws_a_held_out_problem():
    assert all(map(jumps.is_held_out, jumps.held_out(50, size=SHORT)))
    drawn = islice(jumps.training(np.random.default_rng(0), SHORT), 300)
    assert not any(map(jumps.is_held_out, drawn))
    everything = list(islice(jumps.draw(np.random.default_rng(0), SHORT), 400))
    assert 60 < sum(map(jumps.is_held_out, everything)) < 140


def test_wrong_runs_are_graded_wrong():
    problem = jumps.held_out(1)[0]
    right, steps = problem.solution.split(" "), len(problem.steps)
    wrong, digit = [*right], 3 * jumps.STEP + jumps.SUM - 1
    wrong[digit] = str((int(right[digit]) + 1) % 10)
    for written, grade in (
        (wrong, Grade(True, False, 3)),
        ([], Grade(False, False, 0)),
        (right[: -jumps.STEP - 1], Grade(False, False, steps - 1)),
        (right[:-1], Grade(False, False, steps)),
        ([*right, "L3"], Grade(False, False, steps)),
    ):
        assert jumps.grade(problem, " ".join(written)) == grade
