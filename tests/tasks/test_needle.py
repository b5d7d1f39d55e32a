import numpy as np
import pytest

from kvlab.reference.tasks import reasoning
from kvlab.reference.tasks.needle import (
    definitions,
    hide,
    nearest,
    secret_number,
    sentence_ends,
    steps,
)

HAY = "One is here. Two is there! Three? Four has 3.5 legs."


def test_a_needle_lies_between_sentences():
    assert sentence_ends(HAY) == [0, 12, 26, 33, 52]  # not after "3."
    assert hide(HAY, "Look.", 0) == f"Look. {HAY}"
    assert hide(HAY, "Look.", 1) == f"{HAY} Look."
    assert hide(HAY, "Look.", 0.5) == "One is here. Two is there! Look. Three? Four has 3.5 legs."
    assert hide("", "Look.", 0.5) == "Look."


@pytest.mark.parametrize("depth", [-0.1, 1.1, float("nan")])
def test_a_depth_is_a_share(depth):
    with pytest.raises(ValueError, match="must be between 0 and 1"):
        hide(HAY, "Look.", depth)


def test_a_question_asks_for_what_was_hidden():
    needle = secret_number(np.random.default_rng(0))
    assert needle.sentence == f"{needle.opening}{needle.answer}."
    assert needle.question[:-1].endswith(needle.opening[4:-3])
    assert len(needle.answer) == 7


def test_every_definition_is_worked_out_in_its_step():
    (problem,) = definitions(1, 16)
    tokens = problem.solution.split(" ")
    places = steps(problem)
    assert len(places) == 16 - reasoning.FACTS
    assert [tokens[place] for place in places] == [
        [*step.split(" "), ";"] for step in problem.solution.split(" ; ")[:-1]
    ]
    assert tokens[places[-1].stop] == "#"


def test_needles_of_the_embedded_model_are_held_out_problems():
    assert [p.variables for p in definitions(3, 18)] == [18] * 3
    assert definitions(2, 18) == definitions(3, 18)[:2]
    assert definitions(1, 18) != definitions(1, 18, seed=1)
    with pytest.raises(ValueError, match="variables = 17 must be one of 16, 18, 20"):
        definitions(1, 17)
    with pytest.raises(ValueError, match="count = -1"):
        definitions(-1, 18)


def test_the_nearest_depth():
    assert [nearest(x, (0.0, 0.5, 1.0)) for x in (0, 0.2, 0.25, 0.3, 0.8)] == [0, 0, 0, 1, 2]
