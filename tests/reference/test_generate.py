"""Generation of the embedded model under policies."""

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.attention import attend, visible
from kvlab.reference.generate import advance, generate, prefill
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


def test_the_measured_error_is_the_distance_to_dense_attention(model, prompt):
    """Recomputed from scratch with the same layer inputs: all keys and values ever handed over."""
    policy = methods.get("h2o", 40)
    answer = list(generate(model, methods.get("full"), prompt, 12).tokens)
    measured, _ = teacher_forced(model, policy, prompt, answer)
    everything: dict[int, list] = {}
    errors: list[float] = []

    def watch(block, result):
        everything.setdefault(block.layer, []).append((block.keys, block.values))
        pairs = zip(*everything[block.layer], strict=True)
        keys, values = (np.concatenate(vectors, axis=1) for vectors in pairs)
        seen = block.clock.seen
        queries = np.arange(seen - block.clock.block, seen)
        mask = visible(queries, np.tile(np.arange(seen), (len(keys), 1)))
        dense, _ = attend(block.queries, keys, values, mask)
        errors.append(np.sqrt(((dense - result.output) ** 2).sum(-1)).mean())

    _, session = prefill(model, policy, prompt, watch=watch)
    for token in answer[:-1]:
        _, session = advance(session, [token], watch=watch)
    per_step = np.array(errors).reshape(-1, model.config.layers).mean(axis=1)
    np.testing.assert_allclose(measured.output_error, per_step, rtol=0, atol=FLOAT64)
    assert measured.output_error[0] < FLOAT64
    assert measured.output_error[1:].max() > 1e-3


def test_the_full_cache_measures_zero(model, prompt):
    full = methods.get("full")
    answer = list(generate(model, full, prompt, 12).tokens)
    measured, logits = teacher_forced(model, full, prompt, answer)
    again, _ = teacher_forced(model, full, prompt, answer, logits)
    assert measured.output_error.max() < FLOAT64
    assert again.kl.max() == 0.0
    assert again.agreement.all()
    np.testing.assert_array_equal(measured.entries, len(prompt) + np.arange(12))
    np.testing.assert_allclose(measured.average_bits, 16.0)


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
