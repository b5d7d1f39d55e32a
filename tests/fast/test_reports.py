"""What users report of caches elsewhere: each is right here, or refused by name."""

from copy import deepcopy

import peft
import pytest
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from kvlab.fast import compress
from kvlab.fast.huggingface.stream_clock import fingerprints
from support.models import GREEDY, prompts, tiny

TEXT = prompts([24])["input_ids"]
OTHER = prompts([24], seed=5)["input_ids"]


def test_a_layer_that_takes_no_part_in_a_call_is_an_error():
    """Early exit by hand leaves a layer out, which would lack these tokens for good."""
    model = deepcopy(tiny("llama"))
    with compress(model, "h2o", 8) as cache:
        model(TEXT[:, :12], past_key_values=cache)
        model.config.num_hidden_layers -= 1
        with pytest.raises(ValueError, match=r"layer 2, of full attention, gave no keys"):
            model(TEXT[:, 12:16], past_key_values=cache)
        with pytest.raises(ValueError, match="call reset"):
            model(TEXT[:, 16:17], past_key_values=cache)
        model.config.num_hidden_layers += 1
        cache.reset()


def test_a_model_is_not_copied_while_its_methods_are_replaced():
    """A copy would call the weights of the original."""
    model = tiny("llama")
    with compress(model, "full"), pytest.raises(ValueError, match="cannot be copied inside"):
        deepcopy(model)
    logits = deepcopy(model)(TEXT).logits
    torch.testing.assert_close(logits, model(TEXT).logits)


@pytest.mark.parametrize("first", ["input_ids", "inputs_embeds"])
@pytest.mark.parametrize("second", ["input_ids", "inputs_embeds"])
def test_embeddings_go_on_with_their_own_text_alone(first, second):
    model = tiny("llama")
    embed = model.get_input_embeddings()

    def given(name, ids):
        return {name: ids if name == "input_ids" else embed(ids).detach()}

    expected = model.generate(TEXT, **GREEDY, max_new_tokens=4).sequences[:, -4:]
    with compress(model, "full") as cache:
        model(**given(first, TEXT[:, :12]), past_key_values=cache)
        for wrong in (OTHER, torch.cat([TEXT[:, :11], OTHER[:, 11:]], dim=1)):
            if first == second == "input_ids":
                continue  # as tests of refusals have it
            with pytest.raises(ValueError, match="is another one from"):
                model.generate(**given(second, wrong), past_key_values=cache, max_new_tokens=4)
        found = model.generate(
            **given(second, TEXT), past_key_values=cache, **GREEDY, max_new_tokens=4
        )
    assert torch.equal(found.sequences[:, -4:], expected)


def test_new_embeddings_alone_are_refused_with_what_to_give():
    model = tiny("llama")
    new = model.get_input_embeddings()(OTHER[:, :15]).detach()
    with compress(model, "full") as cache:
        model(TEXT[:, :12], past_key_values=cache)
        mask = torch.ones(1, 27, dtype=torch.long)
        with pytest.raises(ValueError, match="12 tokens, of which none is new"):
            model.generate(inputs_embeds=new[:, :12], past_key_values=cache, max_new_tokens=2)
        with pytest.raises(ValueError, match="of the whole text that the cache holds"):
            model.generate(
                inputs_embeds=new, attention_mask=mask, past_key_values=cache, max_new_tokens=2
            )


def test_a_text_that_several_adapters_have_read_is_not_saved(tmp_path):
    torch.manual_seed(0)
    lora = [
        peft.LoraConfig(target_modules=["k_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
        for _ in range(2)
    ]
    model = peft.get_peft_model(deepcopy(tiny("llama")), lora[0], adapter_name="one")
    model.add_adapter("two", lora[1])
    model.eval()
    with compress(model, "full") as cache:
        model(TEXT[:, :12], past_key_values=cache)
        cache.save(tmp_path / "one")
        model.set_adapter("two")
        with pytest.raises(ValueError, match=r"read with the adapters \('one',\), and \('two',\)"):
            cache.save(tmp_path / "two")
        model(TEXT[:, 12:13], past_key_values=cache)
        model.set_adapter("one")
        cache.load(tmp_path / "one")
        model.generate(
            TEXT, past_key_values=cache, adapter_names=["two"], max_new_tokens=2, min_new_tokens=2
        )
        with pytest.raises(ValueError, match="two by adapter_names"):
            cache.save(tmp_path / "two")


@pytest.mark.parametrize("name", ["mine", "sdpa"])
def test_an_attention_function_of_ones_own_is_refused(name, monkeypatch):
    """It would be left out: transformers lets users register one, also under a known name."""
    model = deepcopy(tiny("llama"))

    def doubled(module, query, *rest, **options):
        return sdpa_attention_forward(module, 2 * query, *rest, **options)

    functions = {**AttentionInterface._global_mapping, name: doubled}
    monkeypatch.setattr(AttentionInterface, "_global_mapping", functions)
    model.set_attn_implementation(name)
    with pytest.raises(ValueError, match=f"attn_implementation = '{name}': kvlab attends in place"):
        compress(model, "full")
    model.set_attn_implementation("eager")
    compress(model, "full").close()


def test_an_implementation_that_is_set_inside_is_named():
    model = deepcopy(tiny("llama"))
    with compress(model, "full") as cache:
        model.set_attn_implementation("sdpa")
        with pytest.raises(ValueError, match="attn_implementation was set to 'sdpa' inside"):
            model(TEXT, past_key_values=cache)


CHANGES = {
    "written to": lambda model: model.lm_head.weight.mul_(2),
    "loaded": lambda model: model.load_state_dict(model.state_dict()),
    "replaced": lambda model: setattr(
        model.lm_head, "weight", torch.nn.Parameter(model.lm_head.weight.clone())
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES)
def test_a_context_is_not_saved_as_read_with_other_weights(change, tmp_path):
    """Fine-tuning between reading and saving: the file would name the weights of afterwards."""
    model = deepcopy(tiny("llama"))
    with compress(model, "h2o", 8) as cache:
        model(TEXT[:, :12], past_key_values=cache)
        cache.save(tmp_path / "before")
        CHANGES[change](model)
        for held in (cache, cache.copy()):
            with pytest.raises(ValueError, match="weight of the model was changed or replaced"):
                held.save(tmp_path / "after")
        cache.reset()
        model(TEXT[:, :12], past_key_values=cache)
        cache.save(tmp_path / "after")
        cache.load(tmp_path / "after")
        cache.save(tmp_path / "after")


def test_given_vectors_are_told_apart_by_every_bit():
    given = torch.tensor([1, -1, 2, 1 + 2**-52], dtype=torch.float64)[None, :, None]
    assert len(fingerprints(given).unique()) == 4
