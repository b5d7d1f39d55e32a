import pytest

from kvlab.fast.lab.evaluate.tasks import Outcome, find_task


def test_jump_programs_are_a_task_whose_options_are_their_size():
    task = find_task("jumps@fewest=2,most=9")
    problem, other = task.problems(2, seed=3)
    assert 2 <= problem.solution.count("+") <= 9
    assert task.grade(problem, problem.solution) == Outcome(solved=True, answer_correct=True)
    assert not task.grade(problem, other.solution).solved
    assert task.problems(1, seed=3) == [problem]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("jumps@registers=9", "registers = 9 must be between 2 and 8"),
        ("jumps@steps=9", "unknown option 'steps' of task jumps; allowed are groups, registers"),
    ],
)
def test_bad_sizes(spec, message):
    with pytest.raises(ValueError, match=message):
        find_task(spec)
