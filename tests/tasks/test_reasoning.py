import re

import numpy as np
import pytest
from hypothesis import given, strategies as st

from kvlab.reference.models import reasoner_directory
from kvlab.reference.tasks import Grade, jumps, reasoning
from kvlab.reference.transformer import load_tokenizer
from support.refused import refused


def solve(prompt: str) -> list[str]:
    """Work a prompt out independently, from its text alone."""
    values = {name: int(digit) for name, digit in re.findall(r"(?<!\S)([a-z])(\d) ;", prompt)}
    steps = []
    for a, sign, b, result in re.findall(r"([a-z]) ([+-]) ([a-z]) = \. ([a-z]) ;", prompt):
        x, y = values[a], values[b]
        values[result] = eval(f"({x} {sign} {y}) % 10")
        steps.append(f"{a}{x} {sign} {b}{y} = {values[result]} {result}{values[result]}")
    asked = re.findall(r"\? ([a-z])", prompt)[0]
    return [*steps, f"# {values[asked]} \n"]


@given(st.integers(0, 10**6), st.integers(2, 26), st.data())
def test_solutions_are_right(seed, variables, data):
    facts = data.draw(st.integers(1, variables - 1))
    problem = reasoning.chain(np.random.default_rng(seed), variables, facts)
    assert problem.solution == " ; ".join(solve(problem.prompt))
    grade = reasoning.grade(problem, problem.solution)
    assert grade == Grade(True, True, variables - facts)


def test_held_out_traces_have_150_to_500_tokens():
    problems = reasoning.held_out(200)
    assert {problem.tokens for problem in problems} == {183, 211, 239}
    assert all(problem.tokens == len(problem.text.split(" ")) for problem in problems)


@pytest.mark.parametrize("task", [reasoning, jumps])
def test_held_out_problems_are_repeatable_and_a_prefix_stays(task):
    assert task.held_out(5, seed=3) == task.held_out(9, seed=3)[:5]
    assert task.held_out(5, seed=3) != task.held_out(5, seed=4)


def test_training_draws_other_problems():
    held_out = {problem.prompt for seed in range(3) for problem in reasoning.held_out(200, seed)}
    for seed in range(3):
        rng = reasoning.training_stream(seed)
        drawn = {reasoning.chain(rng, 16, 4).prompt for _ in range(300)}
        assert not held_out & drawn


def test_wrong_solutions_are_graded_wrong():
    problem = reasoning.held_out(1)[0]
    steps = problem.solution.split(" ; ")
    for written, grade in (
        ([*steps[:3], steps[4], *steps[4:]], Grade(True, False, 3)),
        ([*steps[:-1], f"# {(problem.answer + 1) % 10} \n"], Grade(False, False, len(steps) - 1)),
        ([], Grade(False, False, 0)),
        (steps[:-1], Grade(False, False, len(steps) - 1)),
    ):
        assert reasoning.grade(problem, " ; ".join(written)) == grade


def test_the_shipped_tokenizer_has_one_token_per_word():
    tokenizer, vocabulary = load_tokenizer(reasoner_directory()), reasoning.vocabulary()
    text = reasoning.held_out(1)[0].text
    ids = tokenizer.encode(text).ids
    assert [vocabulary[i] for i in ids] == text.split(" ")
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@refused(__file__)
def test_bad_input(bad, message):
    with pytest.raises(ValueError, match=message):
        eval(bad)
