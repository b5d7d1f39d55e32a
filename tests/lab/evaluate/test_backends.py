"""Both backends write the same answers and measure the same figures."""

import numpy as np
import pytest
import torch

from kvlab.fast.lab.evaluate.backends import READ_EVERY, FastBackend, ReferenceBackend, Request
from kvlab.fast.lab.evaluate.tasks import Question
from kvlab.reference import methods
from kvlab.reference.models import reasoner_directory
from kvlab.reference.tasks import reasoning
from support.sampling import sampled
from support.tolerances import FLOAT32_LOGITS

BUDGET = 150
KIVI = "kivi@residual=32"
SPECS_IN_BITS = (
    "ddks@interval=32,selector=8,group=32",
    "desirekv@interval=32,selector=8,group=32",
)
SPECS = {
    "full": None,
    "h2o": BUDGET,
    "tova": BUDGET,
    # Near 0.01 lie so many probabilities that rounding alone moves one over the threshold.
    "lazy_eviction@window=16,threshold=0.2": BUDGET,
    "caote:h2o": BUDGET,
    KIVI: None,
    **dict.fromkeys(SPECS_IN_BITS),
}


@pytest.fixture(scope="module")
def backends():
    return FastBackend(reasoner_directory()), ReferenceBackend(reasoner_directory())


@pytest.fixture(scope="module")
def problems(backends):
    """Prompts of two lengths, what the full cache writes, and the token that ends it."""
    fast, reference = backends
    by_length = {len(p.prompt.split(" ")): p for p in reasoning.held_out(12, seed=5)}
    drawn = [by_length[length] for length in sorted(by_length)[:2]]
    prompts = [fast.encode(problem.prompt) for problem in drawn]
    assert prompts == [reference.encode(problem.prompt) for problem in drawn]
    assert len(set(map(len, prompts))) > 1
    stop = reference.encode(drawn[0].solution)[-1]
    answers = reference.write(methods.get("full"), Request(prompts, 160, stop))
    return prompts, [each.tokens for each in answers], stop


def test_without_a_token_that_ends_it_an_answer_ends_at_the_limit(backends, problems):
    prompts, (answer, *_), _ = problems
    limit = len(answer) + 3
    request = Request(prompts[:1], limit, stop=None)
    written = [backend.write(methods.get("full"), request) for backend in backends]
    assert written[0] == written[1]
    ((tokens, first_eviction),) = written[0]
    assert (len(tokens), tokens[: len(answer)], first_eviction) == (limit, answer, None)


def test_only_a_token_that_stands_nowhere_else_ends_an_answer():
    problem = reasoning.held_out(1, seed=5)[0]
    assert Question(0, problem, [1], [5, 6, 9]).stop == 9
    assert Question(0, problem, [1], [9, 6, 9]).stop is None


@pytest.mark.parametrize("spec", sampled(SPECS, ["tova"]))
def test_the_same_figures_are_measured(spec, backends, problems):
    prompts, answers, _ = problems
    policy = methods.get(spec, SPECS[spec])
    found = [backend.measure(policy, prompts, answers) for backend in backends]
    for (fast, logits), (reference, expected) in zip(*found, strict=True):
        np.testing.assert_allclose(logits, expected, rtol=0, atol=20 * FLOAT32_LOGITS)
        for name in ("entries", "output_error"):
            ours, theirs = getattr(fast, name), getattr(reference, name)
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=10 * FLOAT32_LOGITS, err_msg=name)
        np.testing.assert_allclose(fast.average_bits, reference.average_bits, rtol=0.01)


@pytest.mark.parametrize("spec", ["h2o", KIVI])
def test_answers_that_have_ended_leave_the_batch_and_few_tokens_are_read(
    spec, backends, problems, monkeypatch
):
    """Cut to one token, an answer ends at once, and the others are what each would be alone."""
    (prompt, *_), (answer, *_), stop = problems
    fast, policy, sizes, reads = backends[0], methods.get(spec, SPECS[spec]), [], []
    once, read = Request.length, torch.Tensor.tolist
    monkeypatch.setattr(
        Request, "length", lambda self, row, found: 1 if row == 1 else once(self, row, found)
    )
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: reads.append(x) or read(x))
    hook = fast.model.register_forward_pre_hook(
        lambda model, args, given: sizes.append(len(args[0])), with_kwargs=True
    )
    written = fast.write(policy, Request([prompt] * 3, 40, stop))
    hook.remove()
    assert sizes == [3] * READ_EVERY + [2] * (len(sizes) - READ_EVERY)
    of_tokens = [x for x in reads if x.dtype == torch.int64 and x.dim() == 2]
    assert [x.shape[1] for x in of_tokens] == [16, 32, 40]
    assert written[1].tokens == answer[:1]
    monkeypatch.undo()
    assert written[::2] == fast.write(policy, Request([prompt], 40, stop)) * 2
    assert len(written[0].tokens) == 40
