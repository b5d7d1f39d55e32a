"""The full cache solves, a cache that forgets everything does not."""

from kvlab.fast.models import reasoner_directory
from kvlab.reference import methods
from kvlab.reference.tasks import reasoning
from kvlab.reference.tasks.solving import solve


def test_problems_are_solved_with_the_full_cache_and_not_without_memory():
    problems = reasoning.held_out(2)
    full = list(solve(reasoner_directory(), problems, lambda problem: methods.get("full")))
    none = list(
        solve(reasoner_directory(), problems, lambda problem: methods.get("streaming_llm", 20))
    )
    assert [grade.solution_correct for grade in full] == [True, True]
    assert [grade.solution_correct for grade in none] == [False, False]


def test_the_budget_may_depend_on_the_problem():
    problems, asked = reasoning.held_out(1), []

    def policy(problem):
        asked.append(problem)
        return methods.get("h2o", problem.tokens)

    assert [grade.solution_correct for grade in solve(reasoner_directory(), problems, policy)] == [
        True
    ]
    assert asked == problems
