"""Recording: the trace holds what the model's layers were handed, each token once."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from kvlab.fast.lab import recording
from kvlab.fast.lab.effects import Hidden, effect_labels, measure_effects
from kvlab.fast.models import loading
from kvlab.reference import Transformer
from kvlab.reference.files import query_statistics
from kvlab.reference.models import reasoner_directory
from kvlab.reference.simulator.trace import load_trace, record_trace, save_trace
from kvlab.reference.tasks import reasoning
from support.models import prompts, tiny
from support.running import printed
from support.tables import cases
from support.tolerances import FLOAT32_LOGITS

WRITTEN = 12


@pytest.fixture(scope="module")
def reasoner():
    return loading.load(reasoner_directory(), device="cpu")


@pytest.fixture(scope="module")
def inputs(reasoner):
    inputs = reasoner[1](reasoning.held_out(1)[0].prompt, return_tensors="pt")
    return {**inputs, "max_new_tokens": WRITTEN, "do_sample": False, "pad_token_id": 0}


@pytest.fixture(scope="module")
def trace(reasoner, inputs):
    return recording.record_trace(reasoner[0], **inputs)


def test_a_trace_is_what_the_reference_is_handed(trace, inputs):
    """The reference shares nothing with the model but the file."""
    prompt = inputs["input_ids"][0].tolist()
    model = Transformer.from_directory(reasoner_directory())
    expected = record_trace(model, prompt, WRITTEN)
    for name in ("queries", "keys", "values"):
        recorded, ours = getattr(trace, name), getattr(expected, name)
        assert recorded.dtype == np.float32
        np.testing.assert_allclose(recorded, ours, atol=FLOAT32_LOGITS)
        assert np.abs(recorded[::-1] - ours).max() > 1  # layers exchanged
        assert np.abs(np.roll(recorded, 1, axis=-2) - ours).max() > 1  # tokens shifted
    assert trace.tokens.tolist() == expected.tokens.tolist()
    np.testing.assert_allclose(trace.confidence, expected.confidence, atol=FLOAT32_LOGITS)
    assert np.isnan(trace.confidence).tolist() == [True] * len(prompt) + [False] * (WRITTEN - 1)


def test_some_layers_at_half_precision(reasoner, inputs, trace, tmp_path):
    about = {"layers": [3, 1], "dtype": "float16", "name": "mine"}
    save_trace(recording.record_trace(reasoner[0], **about, **inputs), tmp_path / "part.npz")
    part = load_trace(tmp_path / "part.npz")
    assert (trace.metadata.layers, part.metadata.layers) == ((0, 1, 2, 3), (1, 3))
    assert (trace.metadata.model, part.metadata.model) == ("reasoner", "mine")
    for name in ("queries", "keys", "values"):
        kept = getattr(trace, name)[[1, 3]].astype(np.float16)
        np.testing.assert_array_equal(getattr(part, name), kept)


def test_padding_is_no_part_of_a_trace(reasoner, inputs, trace):
    left = torch.tensor([[5, 6, 7]])
    padded = {
        **inputs,
        "input_ids": torch.cat([left, inputs["input_ids"]], dim=1),
        "attention_mask": torch.cat([0 * left, inputs["attention_mask"]], dim=1),
    }
    found = recording.record_trace(reasoner[0], **padded)
    for name in ("positions", "tokens"):
        np.testing.assert_array_equal(getattr(found, name), getattr(trace, name))
    for name in ("queries", "keys", "values", "confidence"):
        np.testing.assert_allclose(getattr(found, name), getattr(trace, name), atol=FLOAT32_LOGITS)
    assert found.prompt == trace.prompt


def test_softcap_and_sliding_layers_of_gemma():
    """Gemma 2 slides in its first and third layer: only the second is there."""
    model = tiny("gemma2", torch.float32)
    trace = recording.record_trace(model, **prompts([10]), max_new_tokens=1, do_sample=False)
    found = trace.metadata
    assert (found.model, found.layers, found.softcap) == ("Gemma2ForCausalLM", (1,), 4.0)


def test_statistics_are_of_the_queries_before_their_rotation(reasoner, trace, tmp_path):
    """The reference turns them back; channels c and c + d/2 are a pair."""
    found = recording.query_statistics(reasoner[0], trace)
    save_file(found, path := str(tmp_path / "statistics"))
    rotate = Transformer.from_directory(reasoner_directory()).rotate
    L, G, rho, _, d = trace.shape
    turned = trace.queries.astype(float).reshape(L, G * rho, -1, d)
    queries = rotate(turned, -trace.positions)
    pairs = queries.reshape(*queries.shape[:3], 2, -1)
    expected = {
        "mean": queries.mean(axis=2),
        "length": np.tile(np.hypot(pairs[..., 0, :], pairs[..., 1, :]).mean(axis=2), 2),
        "covariance": [[np.cov(head.T, bias=True) for head in layer] for layer in queries],
    }
    for name, numbers in expected.items():
        read = query_statistics(path, name, L, G * rho, d)
        np.testing.assert_allclose(read, numbers, atol=FLOAT32_LOGITS)
        assert np.abs(read).max() > 0.1, name


def test_statistics_of_a_command_serve_a_method(tmp_path):
    path = str(tmp_path / "statistics")
    told = ["--prompt", "1 + 1 =", "--max-new-tokens", "6"]
    printed("trace", *told, "--statistics", "-o", path)
    for method in ("expected_attention@sinks=1,every=2", "triattention@every=2"):
        told[-1:] = ["8", "--budget", "4", "--method", f"{method},statistics={path}"]
        assert "entries kept" in printed("generate", *told)
        told = told[:4]


@cases(__file__, "what_cannot_be_recorded_is_named", "given message")
def test_what_cannot_be_recorded_is_named(reasoner, inputs, given, message):
    with pytest.raises(ValueError, match=message):
        recording.record_trace(reasoner[0], **{**inputs, **given})


def test_effects_of_a_command_are_those_of_its_tokens(reasoner, tmp_path):
    """None is drawn twice, and what is written is what is measured of the trace's own tokens."""
    told = printed("trace", "--max-new-tokens", "40", "--effects", "2", "-o", tmp_path / "t.npz")
    trace = load_trace(tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz", allow_pickle=False) as file:
        rows, losses = file["effect_hidden"], file["effect_losses"]
        assert f"hidden from token {len(trace.tokens) - 33} on" in str(file["card"])
    assert "written tokens" in told and len({*map(tuple, rows.tolist())}) == 2 * 2 * 4
    hidden = [Hidden(layer, head, (entry,)) for layer, head, entry in rows[::5].tolist()]
    found = measure_effects(reasoner[0], trace.tokens.tolist(), hidden)
    np.testing.assert_allclose(losses[::5], found.losses, atol=FLOAT32_LOGITS)
    assert np.abs(losses).max() > 0.01
    with pytest.raises(ValueError, match="effects = 999 must be between 1 and"):
        effect_labels(reasoner[0], trace, 999)
