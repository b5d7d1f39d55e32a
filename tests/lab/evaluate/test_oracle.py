"""The oracle keeps what is used next, and answers may end at their first error."""

import numpy as np
import pytest

from kvlab.fast.lab.evaluate.backends import Request, load_backend
from kvlab.fast.lab.evaluate.oracle import oracle_policy
from kvlab.fast.lab.sweep.compare import run_in_memory
from kvlab.fast.lab.sweep.design import Sweep
from kvlab.reference import methods
from kvlab.reference.cache import State
from kvlab.reference.generate import generate
from kvlab.reference.models import embedded_directory
from kvlab.reference.tasks import jumps
from kvlab.reference.tasks.jumps_oracle import least_memory, next_use
from kvlab.reference.transformer import Transformer, load_tokenizer
from support.build import observation

SHORT = jumps.Size(fewest=2, most=9)
TASK = "jumps@fewest=2,most=5"


@pytest.fixture(scope="module")
def problems():
    return jumps.held_out(3, seed=5, size=SHORT)


@pytest.fixture(scope="module")
def backend():
    return load_backend("fast", embedded_directory("jumps"))


def request_of(backend, problems, to_first_error=False):
    solutions = [backend.encode(each.solution) for each in problems]
    return Request(
        [backend.encode(each.prompt) for each in problems],
        limit=max(map(len, solutions)),
        stop=solutions[0][-1],
        solutions=solutions if to_first_error else None,
    )


def test_the_oracle_evicts_the_entry_that_is_used_last():
    never = np.iinfo(np.int32).max
    uses = np.array([[3, 2, 4, never, never]] * 3)
    score = oracle_policy([np.vstack([uses, uses[:2]])], budget=3, recent=0).score
    seen = observation(np.full((1, 5), 0.2), seen=3)
    scores = score.score(State(), seen, np.ones((1, 5), dtype=bool), 2)
    assert scores[0].argsort().tolist() == [3, 4, 2, 0, 1], "the oldest unused entry is the first"


def test_the_oracle_solves_with_half_of_the_memory_what_random_does_not(backend):
    problems = jumps.held_out(3, seed=5, size=jumps.Size(fewest=24, most=30))
    request = request_of(backend, problems, to_first_error=True)
    budget = min(each.tokens for each in problems) // 2
    assert max(map(least_memory, problems)) < budget
    oracle = oracle_policy([next_use(each) for each in problems], budget, jumps.STEP)
    random = methods.get(f"random@recent={jumps.STEP}", budget)
    for policy, solved in ((oracle, 3), (random, 0)):
        written = backend.write(policy, request)
        graded = map(jumps.grade, problems, [backend.decode(each.tokens) for each in written])
        assert sum(grade.solution_correct for grade in graded) == solved


def test_reference_and_batch_write_the_same_under_the_oracle(backend, problems):
    model = Transformer.from_directory(embedded_directory("jumps"))
    tokenizer = load_tokenizer(embedded_directory("jumps"))
    asked, budget = request_of(backend, problems), max(map(least_memory, problems))
    together = oracle_policy([next_use(each) for each in problems], budget, jumps.STEP)
    written = backend.write(together, asked)
    for problem, prompt, (tokens, _) in zip(problems, asked.prompts, written, strict=True):
        assert prompt == tokenizer.encode(problem.prompt).ids
        alone = oracle_policy([next_use(problem)], budget, jumps.STEP)
        assert list(generate(model, alone, prompt, asked.limit, asked.stop).tokens) == tokens


# --- answers that end at their first error -------------------------------------------------------


@pytest.mark.parametrize("name", ["fast", "reference"])
def test_answers_end_at_their_first_error(name, problems):
    backend = load_backend(name, embedded_directory("jumps"))
    asked = [request_of(backend, problems, only) for only in (False, True)]
    policy = methods.get("streaming_llm", 24)
    whole, cut = ([x.tokens for x in backend.write(policy, each)] for each in asked)
    for answer, start, solution in zip(whole, cut, asked[1].solutions, strict=True):
        assert answer[: len(start)] == start
        assert start[:-1] == solution[: len(start) - 1]
        assert start[-1] != solution[len(start) - 1] or start == answer
    assert sum(map(len, cut)) < sum(map(len, whole))


def test_what_is_not_known_after_an_error_is_not_told():
    sweep = Sweep(("streaming_llm",), ("24",), 2, measured=1, tasks=(TASK,), to_first_error=True)
    for row in run_in_memory(sweep).rows:
        assert not row.solved and row.answer_correct is None
