"""Let a model under a policy solve problems of the embedded task."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kvlab.reference.generate import generate
from kvlab.reference.policy import Policy
from kvlab.reference.tasks import reasoning
from kvlab.reference.tasks.reasoning import Grade, Problem
from kvlab.reference.tokenizer import load_tokenizer
from kvlab.reference.transformer import Transformer

SLACK = 1.25
"""Tokens after which an answer is cut, over those of the right solution."""


def solve(
    directory: Path, problems: Sequence[Problem], policy_for: Callable[[Problem], Policy]
) -> Iterator[Grade]:
    """Yield how well each problem was solved, greedily.

    Args:
        directory: of the embedded reasoner, or of a model with its vocabulary.
        problems: to solve, one after the other.
        policy_for: the policy for a problem, whose budget may depend on its length.

    Raises:
        FileNotFoundError: if the model directory is incomplete.
        ValueError: if a policy does not fit a prompt.
    """
    model, tokenizer = Transformer.from_directory(directory), load_tokenizer(directory)
    for problem in problems:
        prompt, solution = (tokenizer.encode(t).ids for t in (problem.prompt, problem.solution))
        limit = int(SLACK * len(solution))
        written = generate(model, policy_for(problem), prompt, limit, stop=solution[-1])
        text = tokenizer.decode(list(written.tokens), skip_special_tokens=False)
        yield reasoning.grade(problem, text)
