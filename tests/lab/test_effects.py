"""The effect of an entry: worked out by hand, by CAOTE's theorem, and by the reference."""

from math import exp, log, sqrt

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvlab.fast.huggingface.attention import UnsupportedModelError
from kvlab.fast.lab.effects import Hidden, measure_effects
from kvlab.fast.lab.recording import record_trace
from kvlab.reference import methods
from kvlab.reference.methods.caote import joint_error
from kvlab.reference.simulator.replay import Layer
from support.models import prompts, tiny
from support.refused import refused
from support.tolerances import DECIMALS, FLOAT64, THEOREM

READ, RATED = 20, 5
HIDDEN = [
    Hidden(0, 0, (0,)),
    Hidden(2, 3, (7,)),
    Hidden(1, 1, (19,)),
    Hidden(1, 2, (0, 5, 18)),
]


@pytest.fixture(scope="module")
def text():
    return prompts([READ + 1 + RATED])["input_ids"][0].tolist()


@pytest.fixture(scope="module")
def found(text):
    return measure_effects(tiny("llama"), text, HIDDEN, RATED, rows=2)


def test_a_model_of_one_layer_worked_out_by_hand():
    """Zero queries read all alike, so an output is the mean of the values: 2 for a token's own
    channel. Added to the token and divided by the root of its mean square, it is the logits."""
    config = LlamaConfig(
        vocab_size=4,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        rms_norm_eps=0.0,
    )
    model = LlamaForCausalLM(config).double().eval()
    for name, weight in model.named_parameters():
        if any(part in name for part in ("embed", "v_proj", "o_proj", "lm_head")):
            weight.data = torch.eye(4).double()
        elif "norm" not in name:
            weight.data *= 0
    found = measure_effects(model, [0, 1, 1, 2, 3, 0], [Hidden(0, 0, (1,))], rated=1)

    def loss(state):  # of token 0, after token 3
        size = sqrt(sum(x * x for x in state) / 4)
        return log(sum(exp(x / size) for x in state)) - state[0] / size

    seen, hidden = [2 / 5, 4 / 5, 2 / 5, 7 / 5], [2 / 4, 2 / 4, 2 / 4, 6 / 4]
    rise = loss(hidden) - loss(seen)
    assert found.losses[0, 0] == pytest.approx(rise, abs=DECIMALS)  # Llama's norm is in float32
    assert found.outputs[0, 0] == pytest.approx(sqrt(0.01 + 0.09 + 0.01 + 0.01), abs=THEOREM)


def test_the_layer_effect_is_caotes_error(text, found):
    """The reference has queries, keys and values of the model, and nothing else in common."""
    caote = methods.get("caote:tova", 4).score
    ids = torch.tensor([text])
    trace = record_trace(tiny("llama"), dtype="float64", input_ids=ids, max_new_tokens=1)
    layers = list(Layer.all_of(trace))
    for each, outputs in zip(HIDDEN, found.outputs, strict=True):
        layer = layers[each.layer]
        for step, moved in enumerate(outputs, READ):
            h = layer.full_attention(step, step + 1)[each.kv_head, :, 0]
            values = layer.values[each.kv_head, : step + 1]
            hidden = np.isin(np.arange(step + 1), each.entries)
            errors = joint_error(h, values, np.broadcast_to(hidden, h.shape))
            assert moved == pytest.approx(np.linalg.norm(errors), abs=THEOREM)
            if len(each.entries) == 1:
                scores = caote.group_error(h[None], values[None])[0]
                assert moved == pytest.approx(scores[each.entries[0]], abs=THEOREM)
                assert np.abs(scores - moved).max() > 0.01  # another entry's is another


def test_the_effect_is_that_of_a_mask_in_every_layer(text, found):
    """The model's own attention, one text at a time, with a mask of the touched layer alone."""
    model, ids = tiny("llama"), torch.tensor([text])
    plain = _losses(model, ids)
    for each, rise in zip(HIDDEN, found.losses, strict=True):
        attention = model.model.layers[each.layer].self_attn

        def hide(module, args, given, each=each):
            t, first = len(text) - 1, 2 * each.kv_head
            mask = torch.full((1, 8, t, t), -torch.inf).double().triu(1)
            for entry in each.entries:
                mask[:, first : first + 2, READ:, entry] = -torch.inf
            return args, {**given, "attention_mask": mask}

        hook = attention.register_forward_pre_hook(hide, with_kwargs=True)
        hidden = _losses(model, ids)
        hook.remove()
        np.testing.assert_allclose(rise, hidden - plain, atol=FLOAT64)
        assert np.abs(rise).max() > 1e-4


def _losses(model, ids):
    with torch.inference_mode():
        logits = model(ids[:, :-1]).logits[0, READ:].log_softmax(dim=-1)
    return -logits.gather(-1, ids[0, READ + 1 :, None])[:, 0].numpy()


@refused(__file__)
def test_what_cannot_be_measured_is_named(bad, message, text):
    with pytest.raises(ValueError, match=message) as told:
        eval(f"measure_effects({bad})")
    assert isinstance(told.value, UnsupportedModelError) == ("gemma2" in bad)
