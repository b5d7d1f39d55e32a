"""Likelihoods under a policy: against the reference, alone and in batches."""

from functools import partial

import numpy as np
import pytest

from kvlab.fast import methods
from kvlab.fast.lab.evaluate.likelihood import Passage, likelihoods
from kvlab.fast.models.loading import load
from kvlab.reference import Transformer, methods as reference
from kvlab.reference.generate import advance, start
from kvlab.reference.models import reasoner_directory
from kvlab.reference.tasks import reasoning
from kvlab.reference.transformer import load_tokenizer
from support.sampling import diagonal
from support.tables import cases
from support.tolerances import FLOAT32_LOGITS, FLOAT64

ENCODE = load_tokenizer(reasoner_directory()).encode
PROBLEMS = reasoning.held_out(3)
PASSAGES = [
    Passage(ENCODE(problem.prompt).ids, ENCODE(problem.solution).ids[: 30 + 3 * n])
    for n, problem in enumerate(PROBLEMS)
]
BLOCK = 16


@pytest.fixture(scope="module")
def model():
    return load(reasoner_directory(), "float64")[0]


@pytest.fixture(scope="module")
def teacher():
    return Transformer.from_directory(reasoner_directory())


def rate(model, spec, budget, passages, *how):
    policy_at = partial(methods.get, spec)
    return likelihoods(model, policy_at, passages, [budget] * len(passages), *how)


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def by_hand(teacher, spec, budget, prompt, blocks, rated):
    """Log-probabilities of the last tokens, fed to the reference in these blocks.

    transformers normalises in float32, whatever the model's number format is.
    """
    session = start(teacher, reference.get(spec, budget), prompt)
    rows = []
    for block in blocks:
        logits, session = advance(session, block)
        rows.append(logits)
    found = log_softmax(np.concatenate(rows))[-len(rated) :]
    return found[np.arange(len(rated)), rated], found.argmax(axis=-1) == rated


def cut(tokens, size):
    return [tokens[first : first + size] for first in range(0, len(tokens), size)]


@cases(__file__, "a_continuation_is_fed_as_if_written_or_as_a_prompt", "feed spec")
def test_a_continuation_is_fed_as_if_written_or_as_a_prompt(model, teacher, feed, spec):
    budget = None if spec == "full" else 70
    passage = PASSAGES[0]
    prompt, solution = passage.prompt, passage.rated
    (found,) = rate(model, spec, budget, [passage], BLOCK, feed)
    fed = [*prompt, *solution[:-1]]
    as_written = [*cut(prompt, BLOCK), *([token] for token in solution[:-1])]
    blocks, given = (as_written, prompt) if feed == "steps" else (cut(fed, BLOCK), fed)
    logprobs, greedy = by_hand(teacher, spec, budget, len(given), blocks, solution)
    np.testing.assert_allclose(found.logprobs, logprobs, rtol=0, atol=FLOAT32_LOGITS)
    np.testing.assert_array_equal(found.greedy, greedy)
    if spec == "h2o" and feed == "steps":
        assert found.entries == 70
    if feed == "blocks":
        (steps,) = rate(model, spec, budget, [passage], BLOCK)
        other = np.abs(steps.logprobs - found.logprobs).max()
        assert other > 100 * FLOAT32_LOGITS, "another question"


@pytest.mark.parametrize(("feed", "block"), diagonal(["steps", "blocks"], [None, BLOCK]))
def test_a_batch_rates_what_each_alone_is_rated(model, feed, block):
    together = rate(model, "h2o", 80, PASSAGES, block, feed, 3)
    for passage, found in zip(PASSAGES, together, strict=True):
        (alone,) = rate(model, "h2o", 80, [passage], block, feed)
        np.testing.assert_allclose(found.logprobs, alone.logprobs, rtol=0, atol=FLOAT64)
        assert len(found.logprobs) == len(passage.rated)
        assert found.entries == alone.entries


def test_passages_with_different_budgets_keep_their_order(model):
    budgets, done = [80, 60, 80], []
    policy_at = partial(methods.get, "h2o")
    found = likelihoods(model, policy_at, PASSAGES, budgets, None, "steps", 3, done.append)
    assert [each.entries for each in found] == budgets
    assert done == [2, 3]


def test_entries_of_a_shorter_row_are_counted_at_its_own_end(model):
    found = rate(model, "full", None, PASSAGES, None, "steps", 3)
    assert [each.entries for each in found] == [len(each) - 1 for each in PASSAGES]


@pytest.mark.parametrize("passage", [Passage([], [1]), Passage([1], [])])
def test_a_passage_without_prompt_or_rated_tokens_is_refused(model, passage):
    with pytest.raises(ValueError, match="must be at least one each"):
        rate(model, "full", None, [passage], None)
