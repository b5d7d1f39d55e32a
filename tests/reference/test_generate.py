"""Generation of the embedded model under policies."""

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.generate import generate, prefill
from kvlab.reference.measure import divergence, teacher_forced
from kvlab.reference.models import reasoner_directory
from kvlab.reference.tasks import reasoning
from kvlab.reference.transformer import Transformer, load_tokenizer
from support.tolerances import FLOAT64


@pytest.fixture(scope="module")
def model():
    return Transformer.from_directory(reasoner_directory())


@pytest.fixture(scope="module")
def prompt():
    problem = reasoning.held_out(1, seed=5)[0]
    return load_tokenizer(reasoner_directory()).encode(problem.prompt).ids


def test_sampling_is_repeatable_and_differs_from_greedy(model, prompt):
    full = methods.get("full")
    one, again, other = (
        generate(model, full, prompt, 25, temperature=3.0, seed=seed).tokens for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other


def test_the_model_is_sure_of_what_it_wrote_and_not_of_what_was_given(model, prompt):
    """The confidence of the first token is the largest probability after the prompt."""
    full = methods.get("full")
    confidence = generate(model, full, prompt, 4).session.confidence
    after, _ = prefill(model, full, prompt)
    assert np.isnan(confidence[: len(prompt)]).all() and len(confidence) == len(prompt) + 3
    expected = np.exp(after - after.max())
    assert confidence[len(prompt)] == pytest.approx(1 / expected.sum(), rel=FLOAT64)
    assert (confidence[len(prompt) :] > 0).all()


def test_it_stops_at_the_stop_token(model, prompt):
    written = generate(model, methods.get("full"), prompt, 400, stop=0).tokens
    assert written[-1] == 0
    assert 0 not in written[:-1]


def test_divergence_by_hand():
    """p = (½, ½), q = (¼, ¾): ½ ln 2 + ½ ln ⅔."""
    full, other = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    expected = 0.5 * np.log(2) + 0.5 * np.log(2 / 3)
    np.testing.assert_allclose(divergence(full, other), [expected], rtol=0, atol=FLOAT64)


def test_bad_input(model, prompt):
    full = methods.get("full")
    with pytest.raises(ValueError, match="prompt must hold at least one token"):
        generate(model, full, [], 3)
    with pytest.raises(ValueError, match="block_size = 0 must be at least 1"):
        generate(model, full, prompt, 3, block_size=0)
    with pytest.raises(ValueError, match=r"temperature = -1\.0 must be at least 0"):
        generate(model, full, prompt, 3, temperature=-1.0)
    with pytest.raises(ValueError, match="continuation must hold at least one token"):
        teacher_forced(model, full, prompt, [])
    with pytest.raises(ValueError, match="full_logits has the shape"):
        teacher_forced(model, full, prompt, [1, 2], np.zeros((1, 3)))
