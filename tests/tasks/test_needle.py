"""Needles in a text: every one can be found, and no other text tells it."""

import re

import pytest

from kvlab.fast.lab.evaluate.tasks import Outcome, find_task
from kvlab.reference.tasks import english, needle, reasoning
from support.refused import refused

HAY = "One is here. Two is there! Three? Four has 3.5 legs."


def test_a_needle_lies_between_sentences():
    places = {needle.hide(HAY, "Look.", depth / 52).index("Look.") for depth in range(53)}
    assert places == {0, 13, 27, 34, 53}  # not after "3."
    assert needle.hide(HAY, "Look.", 0) == f"Look. {HAY}"
    assert needle.hide(HAY, "Look.", 1) == f"{HAY} Look."
    middle = HAY.replace("Three?", "Look. Three?")
    assert needle.hide(HAY, "Look.", 0.5) == middle
    assert needle.hide("", "Look.", 0.5) == "Look."


def test_every_definition_is_worked_out_in_its_step():
    (problem,) = reasoning.held_out(1, variables=16)
    tokens = problem.solution.split(" ")
    places = needle.steps(problem)
    assert len(places) == 16 - reasoning.FACTS
    assert [tokens[place] for place in places] == [
        [*step.split(" "), ";"] for step in problem.solution.split(" ; ")[:-1]
    ]
    assert tokens[places[-1].stop] == "#"


def test_sentences_do_not_end_at_titles():
    sentences = english.novel_sentences()
    assert not [each for each in sentences if each.endswith(("Mr.", "Mrs.", "Dr."))]
    assert sum(len(each.split()) for each in sentences) > 76_000


@pytest.mark.parametrize("words", [100, 900])
def test_passages_have_the_length_that_was_asked_for(words):
    problems = needle.haystacks(3, 0, words, 1)
    lengths = [len(problem.context.split()) for problem in problems]
    assert all(words <= length < words + 150 for length in lengths)
    assert len({problem.context for problem in problems}) == 3


def test_needles_share_a_text_and_lie_at_their_depths():
    problems = needle.haystacks(10, 4, 600, 5)
    for first in (0, 5):
        some = problems[first : first + 5]
        assert len({problem.context for problem in some}) == 1
        assert len({problem.question for problem in some}) == 5
        assert [problem.depth for problem in some] == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
        for problem in some:
            answer = problem.solution.strip(" .")
            assert problem.context.count(answer) == 1
            place = problem.context.index(answer) / len(problem.context)
            assert place == pytest.approx(problem.depth, abs=0.1)
            opening = problem.question.split("? ")[1]
            assert f"{opening}{problem.solution}" in problem.context
    assert needle.haystacks(3, 4, 600, 5) == problems[:3]


def test_only_the_right_number_counts():
    task = find_task("needle@words=100")
    problem, other = task.problems(2, seed=1)
    assert task.grade(problem, problem.solution) == Outcome(True, True)
    assert not task.grade(problem, other.solution).solved
    assert not task.grade(problem, problem.solution + " 1").solved


def test_a_reading_asks_for_all_facts_of_its_text():
    problems = needle.readings(4, 2, 300, 2)
    assert len({problem.context for problem in problems}) == 4
    for problem in problems:
        first, second = problem.solution.split("\n")
        opening = problem.question.rpartition("\n")[2]
        assert opening + first in problem.context
        assert second in problem.context
        topics = problem.question.partition("about ")[2].partition(".")[0].split(" and ")
        assert opening.lower().startswith(topics[0].lower())
        assert second.lower().startswith(topics[1].lower())
    assert needle.readings(2, 2, 300, 2) == problems[:2]


def test_a_reading_is_solved_by_its_numbers_in_order():
    task = find_task("reading@words=100")
    (problem,) = task.problems(1, seed=1)
    first, second = re.findall(r"\d+", problem.solution)
    assert task.grade(problem, problem.solution) == Outcome(True, True)
    assert task.grade(problem, f" {first}.\n\nThe other was {second}, not 3") == Outcome(True, True)
    assert task.grade(problem, f" {first}.") == Outcome(False, True)
    assert task.grade(problem, f" {second}. {first}") == Outcome(False, False)
    assert task.grade(problem, "") == Outcome(False, False)


@refused(__file__)
def test_bad_options(bad, message):
    with pytest.raises(ValueError, match=message):
        find_task(bad)
