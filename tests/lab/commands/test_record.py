"""Recording: the trace holds what the model's layers were handed, each token once."""

import numpy as np
import pytest
from tolerances import FLOAT32_LOGITS

from kvlab.reference import Transformer, generate, methods
from kvlab.reference.models import reasoner_directory
from kvlab.reference.observation import Clock
from kvlab.reference.simulator.trace import load_trace, save_trace
from kvlab.reference.tasks import reasoning

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
loading = pytest.importorskip("kvlab.fast.models.loading")
recording = pytest.importorskip("kvlab.fast.lab.recording")
batch = pytest.importorskip("kvlab.fast.engine.batch")
port = pytest.importorskip("kvlab.fast.engine.port")
step = pytest.importorskip("kvlab.fast.engine.step")

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
    return recording.record_generation(reasoner[0], **inputs)


def same_generation(prompt):
    """Record the same with the reference, which shares nothing with the model but the file."""
    model = Transformer.from_directory(reasoner_directory())
    blocks = [[] for _ in range(model.config.layers)]
    written = generate(
        model,
        methods.get("full"),
        prompt,
        max_new_tokens=WRITTEN,
        watch=lambda block, result: blocks[block.layer].append(block),
    )

    def joined(name):
        return np.stack(
            [np.concatenate([getattr(b, name) for b in layer], axis=-2) for layer in blocks]
        )

    return written, joined


def test_a_trace_is_what_the_reference_is_handed(trace, inputs):
    prompt = inputs["input_ids"][0].tolist()
    written, joined = same_generation(prompt)
    for name in ("queries", "keys", "values"):
        recorded, expected = getattr(trace, name), joined(name)
        assert recorded.dtype == np.float32
        np.testing.assert_allclose(recorded, expected, atol=FLOAT32_LOGITS)
        assert np.abs(recorded[::-1] - expected).max() > 1  # layers exchanged
        assert np.abs(np.roll(recorded, 1, axis=-2) - expected).max() > 1  # tokens shifted
    assert trace.tokens.tolist() == [*prompt, *written.tokens[:-1]]
    np.testing.assert_allclose(trace.confidence, written.session.confidence, atol=FLOAT32_LOGITS)
    assert np.isnan(trace.confidence).tolist() == [True] * len(prompt) + [False] * (WRITTEN - 1)


def test_a_trace_says_what_it_is_of(trace, inputs):
    prompt = inputs["input_ids"].shape[1]
    assert trace.prompt == prompt
    np.testing.assert_array_equal(trace.positions, np.arange(prompt + WRITTEN - 1))
    assert trace.metadata.model == "reasoner"
    assert trace.metadata.layers == (0, 1, 2, 3)
    assert trace.metadata.softcap is None


def test_some_layers_at_half_precision(reasoner, inputs, trace, tmp_path):
    part = recording.record_generation(
        reasoner[0], layers=[3, 1], dtype="float16", name="mine", **inputs
    )
    save_trace(part, tmp_path / "part.npz")
    part = load_trace(tmp_path / "part.npz")
    assert part.metadata.layers == (1, 3)
    assert part.metadata.model == "mine"
    for name in ("queries", "keys", "values"):
        np.testing.assert_array_equal(
            getattr(part, name), getattr(trace, name)[[1, 3]].astype(np.float16)
        )


def test_padding_is_no_part_of_a_trace(reasoner, inputs, trace):
    left = torch.tensor([[5, 6, 7]])
    padded = {
        **inputs,
        "input_ids": torch.cat([left, inputs["input_ids"]], dim=1),
        "attention_mask": torch.cat([0 * left, inputs["attention_mask"]], dim=1),
    }
    found = recording.record_generation(reasoner[0], **padded)
    for name in ("positions", "tokens"):
        np.testing.assert_array_equal(getattr(found, name), getattr(trace, name))
    for name in ("queries", "keys", "values", "confidence"):
        np.testing.assert_allclose(getattr(found, name), getattr(trace, name), atol=FLOAT32_LOGITS)
    assert found.prompt == trace.prompt


def test_the_model_is_as_before(reasoner, inputs, trace):
    model, _ = reasoner
    implementation = model.config._attn_implementation
    recording.record_generation(model, layers=[0], **inputs)
    assert model.config._attn_implementation == implementation
    tokens = model.generate(**inputs)[0].tolist()
    assert tokens[:-1] == trace.tokens.tolist()


def test_scale_softcap_and_sliding_layers_of_gemma():
    """Gemma 2 scales by its own factor and slides in its first layer: only the second is there."""
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
        **{"query_pre_attn_scalar": 2, "attn_logit_softcapping": 5.0, "sliding_window": 8},
        **{"eos_token_id": None, "pad_token_id": 0, "bos_token_id": 1},
    )
    model = transformers.Gemma2ForCausalLM(config).eval()
    seen = {}

    def look(module, arguments, named):
        seen["states"], seen["rotary"] = named["hidden_states"], named["position_embeddings"]

    hook = model.model.layers[1].self_attn.register_forward_pre_hook(look, with_kwargs=True)
    tokens = torch.arange(10, 20)[None]
    trace = recording.record_generation(model, input_ids=tokens, max_new_tokens=1, do_sample=False)
    hook.remove()
    assert trace.metadata.layers == (1,)
    assert trace.metadata.softcap == 5.0
    assert trace.metadata.model == "Gemma2ForCausalLM"
    rotate = transformers.models.gemma2.modeling_gemma2.apply_rotary_pos_emb
    attention = model.model.layers[1].self_attn
    with torch.no_grad():
        heads = (1, 10, -1, 8)
        raw = attention.q_proj(seen["states"]).view(heads).transpose(1, 2)
        keys = attention.k_proj(seen["states"]).view(heads).transpose(1, 2)
        queries, keys = rotate(raw, keys, *seen["rotary"])
    expected = torch.einsum("hmd,hnd->hmn", queries[0], keys[0].repeat_interleave(2, 0)) / 2**0.5
    found = np.einsum("grmd,gnd->grmn", trace.queries[0], trace.keys[0]) / 8**0.5
    np.testing.assert_allclose(found.reshape(4, 10, 10), expected, atol=FLOAT32_LOGITS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layers": [0, 4]}, r"layers = \[0, 4\] must be some of the full-attention layers 0, 1,"),
        ({"layers": [-1]}, r"layers = \[-1\] must be some of"),
        ({"layers": []}, r"layers = \[\] must be some of"),
        ({"dtype": "bfloat16"}, "dtype = 'bfloat16' must be float16 or float32 or float64"),
        ({"input_ids": torch.ones(2, 3, dtype=int)}, "input_ids of 2 sequences must hold one"),
    ],
)
def test_what_cannot_be_recorded_is_named(reasoner, inputs, given, message):
    with pytest.raises(ValueError, match=message):
        recording.record_generation(reasoner[0], **{**inputs, **given})


# --- the recorder alone --------------------------------------------------------------------------


def block(positions, clocks, layer=0, size=1.0):
    """A block whose queries, keys and values name layer, position and what they are."""
    positions = torch.tensor(positions, dtype=torch.int32)
    N, m = positions.shape
    prompt = torch.tensor([clock.prompt for clock in clocks], dtype=torch.int32)[:, None, None]

    def vectors(name, *heads):
        base = size * (positions + 100 * layer + name).float()
        return base.view(N, *(1 for _ in heads), m, 1).expand(N, *heads, m, 2).clone()

    return step.Block(
        clock=batch.BatchClock(tuple(clocks), positions, prompt),
        layer=layer,
        queries=vectors(0.0, 1, 3),
        keys=vectors(0.25, 1),
        values=vectors(0.5, 1),
        confidence=torch.zeros(N, 1),
        softcap=30.0,
    )


def recorder(*layers, dtype="float32"):
    made = recording.Recorder(dtype)
    made.layers = list(layers)
    return made


def watch(made, piece):
    positions = piece.clock.positions[:, None]
    cache = port.port(methods.get("full")).empty_cache()
    made(piece, step.StepResult(piece.queries, positions, None, None, cache))


def test_padding_is_left_out_and_blocks_are_joined():
    made = recorder(0, 2)
    for layer in (0, 1, 2):
        watch(made, block([[-1, 0, 1]], [Clock(2, 2, 3)], layer))
        watch(made, block([[2]], [Clock(3, 1, 3)], layer))
        watch(made, block([[3]], [Clock(4, 1, 3)], layer))
    trace = made.trace(np.arange(10, 15), np.full(4, np.nan), "model")
    assert trace.queries.shape == (2, 1, 3, 4, 2)
    assert trace.queries[0, 0, 0, :, 0].tolist() == [0, 1, 2, 3]
    assert trace.keys[1, 0, :, 1].tolist() == [200.25, 201.25, 202.25, 203.25]
    assert trace.values[0, 0, :, 0].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert trace.tokens.tolist() == [10, 11, 12, 13]
    assert (trace.prompt, trace.metadata.softcap) == (3, 30.0)


def test_what_is_recorded_is_a_copy():
    made = recorder(0)
    piece = block([[0, 1]], [Clock(2, 2, 2)])
    watch(made, piece)
    piece.keys.zero_()
    assert made.trace(np.arange(2), np.full(2, np.nan), "model").keys.min() == 0.25


def test_two_sequences_are_refused():
    with pytest.raises(ValueError, match="a trace holds one sequence, not 2"):
        watch(recorder(0), block([[0], [0]], [Clock(1, 1, 1)] * 2))


def test_layers_that_read_other_tokens_are_refused():
    made = recorder(0, 1)
    watch(made, block([[0, 1]], [Clock(2, 2, 2)], 0))
    watch(made, block([[0]], [Clock(1, 1, 1)], 1))
    with pytest.raises(ValueError, match=r"layers \[0, 1\] did not read the same tokens"):
        made.trace(np.arange(2), np.full(2, np.nan), "model")


def test_a_layer_that_never_came_is_named():
    made = recorder(0, 1)
    watch(made, block([[0]], [Clock(1, 1, 1)], 0))
    with pytest.raises(ValueError, match=r"layers = \[0, 1\] were asked for, got \[0\]"):
        made.trace(np.arange(1), np.full(1, np.nan), "model")


def test_what_float16_cannot_hold_is_refused():
    made = recorder(0, dtype="float16")
    watch(made, block([[0, 1]], [Clock(2, 2, 2)], size=1e5))
    message = "queries of layer 0 must be finite; float16 reaches 65504"
    with pytest.raises(ValueError, match=message):
        made.trace(np.arange(2), np.full(2, np.nan), "model")
