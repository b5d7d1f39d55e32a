"""Models that PEFT has wrapped are compressed as they are, or refused with the adapter's name."""

import copy

import peft
import pytest
import torch

from kvlab.fast import compress
from support.models import GREEDY, prompts, tiny
from support.tolerances import FLOAT32_LOGITS

LORA = peft.LoraConfig(
    target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False
)
LEARNED = [peft.PrefixTuningConfig, peft.PromptTuningConfig]


def wrapped(config):
    torch.manual_seed(2)
    return peft.get_peft_model(copy.deepcopy(tiny("llama", torch.float32)), config).eval()


@pytest.mark.parametrize("inside", [False, True], ids=["the wrapper", "the model inside"])
def test_a_wrapped_model_writes_with_its_adapters(inside):
    model, inputs = wrapped(LORA), prompts([21, 13])
    given = model.get_base_model() if inside else model
    asked = {**inputs, **GREEDY, "max_new_tokens": 8}
    expected = model.generate(**asked)
    with model.disable_adapter():
        assert not torch.equal(model.generate(**asked).sequences, expected.sequences)
    with compress(given, "full") as cache:
        found = model.generate(**asked, past_key_values=cache)
        cache.reset()
        logits = model(**inputs, past_key_values=cache).logits
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(
        logits[:, -1], expected.logits[0], rtol=0, atol=FLOAT32_LOGITS * logits.std()
    )
    assert torch.equal(model.generate(**asked).sequences, expected.sequences)
    assert "forward" not in vars(model.get_base_model())


@pytest.mark.parametrize("kind", LEARNED)
def test_learned_prompts_are_refused_by_name(kind):
    model = wrapped(kind(num_virtual_tokens=5, task_type="CAUSAL_LM"))
    refused = pytest.raises(ValueError, match=r"adapter 'default' of PeftModelForCausalLM.*learned")
    with refused, compress(model, "full"):
        pass
    assert model.get_base_model().config._attn_implementation != "kvlab"
    with compress(model.get_base_model(), "full") as cache:
        with refused:
            model.generate(**prompts([12]), past_key_values=cache)
        assert cache.text.clock.columns == 0


def test_an_adapter_that_begins_within_a_call_needs_the_call_whole():
    """PEFT counts its beginning from the end of the call, which blocks would move."""
    config = copy.deepcopy(LORA)
    config.alora_invocation_tokens = [5, 6]
    model, ids = wrapped(config), prompts([21])["input_ids"]
    ids[0, 10:12] = torch.tensor([5, 6])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    expected = model(**given).logits.detach()
    with compress(model, "full") as cache:
        found = model(**given, past_key_values=cache).logits
    atol = FLOAT32_LOGITS * float(expected.std())
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    with (
        compress(model, "full", block_size=7) as cache,
        pytest.raises(ValueError, match="block_size = 7 cannot be used with the adapter 'default'"),
    ):
        model(**given, past_key_values=cache)
