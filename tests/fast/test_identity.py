"""A saved context is of one model: of all that computes keys and values, whoever holds it."""

from copy import deepcopy
from typing import Any

import accelerate
import peft
import pytest
import torch
from models import CONFIGS, SHAPE, built, prompts
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from transformers import AutoModelForCausalLM, LlamaConfig

from kvlab.fast import compress
from kvlab.fast.huggingface.identity import digest_of

TEXT, NEXT = prompts([20])["input_ids"], prompts([1], seed=4)["input_ids"]


def model_of(**options):
    return built(LlamaConfig(**{**SHAPE, **options}), torch.float32)


def logits_of(model, cache):
    mask = torch.ones(1, cache.get_seq_length() + 1)
    return model(NEXT, attention_mask=mask, past_key_values=cache).logits


def saved(model, file, **options):
    """Save what a model has read; return the logits of the token after it."""
    with compress(model, "h2o", 10) as cache:
        model(TEXT, past_key_values=cache)
        cache.save(file, **options)
        return logits_of(model, cache)


def loaded(model, file, **options):
    with compress(model, "h2o", 10) as cache:
        cache.load(file, **options)
        return logits_of(model, cache)


# --- where weights are ----------------------------------------------------------------------------


def offloaded(how, directory, folder):
    if how == "disk, by transformers":
        places = {f"model.layers.{n}": "disk" if n else "cpu" for n in range(3)}
        places |= dict.fromkeys(("model.embed_tokens", "lm_head"), "cpu")
        places |= dict.fromkeys(("model.norm", "model.rotary_emb"), "cpu")
        return AutoModelForCausalLM.from_pretrained(
            directory, device_map=places, offload_folder=folder
        )
    model = AutoModelForCausalLM.from_pretrained(directory)
    if how == "host":
        return accelerate.cpu_offload(model, "cpu", offload_buffers=True)
    return accelerate.disk_offload(model, folder, "cpu") if how == "disk" else model


@pytest.mark.parametrize("how", ["host", "disk", "disk, by transformers"])
def test_an_offloaded_model_is_the_same_model(how, tmp_path):
    (tmp_path / "folder").mkdir()
    model_of(tie_word_embeddings=how != "disk").save_pretrained(tmp_path / "model")
    here = offloaded("memory", tmp_path / "model", "")
    there = offloaded(how, tmp_path / "model", tmp_path / "folder")
    expected = saved(here, tmp_path / "here")
    torch.testing.assert_close(saved(there, tmp_path / "there"), expected)
    torch.testing.assert_close(loaded(there, tmp_path / "here"), expected)
    torch.testing.assert_close(loaded(here, tmp_path / "there"), expected)
    torch.testing.assert_close(loaded(there, tmp_path / "there"), expected)


def test_after_a_refused_file_an_offloaded_model_goes_on(tmp_path):
    model, other = model_of(), model_of()
    other.model.layers[1].self_attn.v_proj.weight.data[0, 0] += 1
    saved(other, tmp_path / "other")
    expected = saved(model, tmp_path / "own")
    accelerate.cpu_offload(model, "cpu")
    with compress(model, "h2o", 10) as cache:
        model(TEXT, past_key_values=cache)
        with pytest.raises(ValueError, match="another model: weights is"):
            cache.load(tmp_path / "other")
        torch.testing.assert_close(logits_of(model, cache), expected)


def test_weights_without_numbers_need_a_name(tmp_path):
    model = model_of()
    with compress(model, "h2o", 10) as cache:
        model(TEXT, past_key_values=cache)
        held = cache.positions()
        model.model.layers[1].mlp.to("meta")
        with pytest.raises(ValueError, match=r"layers.1.mlp.* on the device meta.* model_name"):
            cache.save(tmp_path / "file")
        torch.testing.assert_close(cache.positions(), held)
        assert not list(tmp_path.iterdir())
        cache.save(tmp_path / "file", model_name="mine")


# --- what counts ----------------------------------------------------------------------------------


class Quantised(nn.Module):
    """A projection whose weights are small integers, and whose scales are a buffer."""

    def __init__(self, linear: nn.Linear, persistent: bool) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax(dim=1, keepdim=True) / 127
        codes = (linear.weight.detach() / scale).round().to(torch.int8)
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.scale = nn.Buffer(scale, persistent=persistent)

    def forward(self, x):
        return nn.functional.linear(x, self.weight * self.scale)


def quantised(persistent: bool = True):
    model = model_of()
    for layer in model.model.layers:
        layer.self_attn.k_proj = Quantised(layer.self_attn.k_proj, persistent)
    return model


def of_two_tensors():
    """Return a model whose weights are a subclass of Tensor, as those of torchao are."""
    model = model_of()
    for layer in model.model.layers:
        weight = layer.self_attn.k_proj.weight.detach()
        layer.self_attn.k_proj.weight = nn.Parameter(TwoTensor(weight, weight.clone()), False)
    return model


def next_number(model):
    weight = model.model.layers[2].mlp.up_proj.weight.data
    weight[71, 33] = torch.nextafter(weight[71, 33], torch.tensor(9.0))


CHANGES = {
    "one bit of a weight": (model_of, next_number),
    "two columns exchanged": (
        model_of,
        lambda m: m.lm_head.weight.data.copy_(m.lm_head.weight.data.roll(1, dims=1)),
    ),
    "a code": (quantised, lambda m: m.model.layers[1].self_attn.k_proj.weight.data[3, 5].neg_()),
    "a scale": (quantised, lambda m: m.model.layers[1].self_attn.k_proj.scale[3].mul_(2)),
    "a scale that is not stored": (
        lambda: quantised(False),
        lambda m: m.model.layers[1].self_attn.k_proj.scale[3].mul_(2),
    ),
    "the second half of a subclass": (
        of_two_tensors,
        lambda m: m.model.layers[1].self_attn.k_proj.weight.data.b.neg_(),
    ),
    "frequencies of positions": (model_of, lambda m: m.model.rotary_emb.inv_freq.mul_(0.5)),
    "a number format": (model_of, lambda m: m.bfloat16()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_way_to_hold_weights_is_saved_and_its_changes_are_noticed(change, tmp_path):
    make, alter = CHANGES[change]
    expected = saved(make(), tmp_path / "file")
    model = make()
    torch.testing.assert_close(loaded(model, tmp_path / "file"), expected)
    alter(model)
    with pytest.raises(ValueError, match="another model: weights is"):
        loaded(model, tmp_path / "file")


SCALED = {
    "dynamic": ({"factor": 2.0}, 16),
    "longrope": (
        {
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
            "original_max_position_embeddings": 16,
        },
        64,
    ),
}


@pytest.mark.parametrize("kind", SCALED)
def test_what_a_long_text_changes_does_not_count(kind):
    options, longest = SCALED[kind]
    rope = {"rope_type": kind, "rope_theta": 1e4, **options}
    model = model_of(rope_parameters=rope, max_position_embeddings=longest)
    expected, before = digest_of(model), model.model.rotary_emb.inv_freq.clone()
    for length in (40, 5):
        model(prompts([length])["input_ids"])
        assert digest_of(model) == expected
        assert torch.equal(model.model.rotary_emb.inv_freq, before) == (length == 5)


def test_layout_and_ties_do_not_count():
    model = model_of(tie_word_embeddings=True)
    other = deepcopy(model)
    other.lm_head.weight = nn.Parameter(other.lm_head.weight.detach().T.contiguous().T)
    assert not other.lm_head.weight.is_contiguous()
    assert digest_of(other) == digest_of(model)


# --- adapters -------------------------------------------------------------------------------------


def adapted(*names: str) -> tuple[Any, Any]:
    """Return a model with adapters of PEFT, and the object by which PEFT controls them."""
    torch.manual_seed(1)
    adapters = peft.LoraConfig(target_modules=["q_proj", "k_proj"], init_lora_weights=False)
    control = peft.get_peft_model(model_of(), adapters, names[0])
    for name in names[1:]:
        control.add_adapter(name, adapters)
    return control.get_base_model(), control.eval()


def test_the_active_adapter_counts(tmp_path):
    model, control = adapted("one", "two")
    expected = saved(model, tmp_path / "one")
    control.set_adapter("two")
    with pytest.raises(ValueError, match=r"adapters is \['one'\] in the file, and \['two'\] here"):
        loaded(model, tmp_path / "one")
    with pytest.raises(ValueError, match="adapters is"):
        loaded(model_of(), tmp_path / "one")
    alone, _ = adapted("one")  # what is not active does not count
    torch.testing.assert_close(loaded(alone, tmp_path / "one"), expected)
    control.set_adapter("one")
    model.model.layers[1].self_attn.k_proj.scale_layer(0.5)
    with pytest.raises(ValueError, match="weights is"):
        loaded(model, tmp_path / "one")


def test_adapters_that_are_off_or_merged_add_nothing():
    model, control = adapted("one", "two")
    with control.disable_adapter():
        assert digest_of(model) == digest_of(model_of())
    apart = digest_of(model)
    control.merge_adapter()
    merged = digest_of(model)
    assert merged not in (apart, digest_of(model_of()))
    assert digest_of(adapted("one", "two")[1].merge_and_unload()) == merged


# --- a name of one's own --------------------------------------------------------------------------


def test_a_name_stands_for_the_weights(tmp_path):
    model, other, file = model_of(), model_of(), tmp_path / "file"
    next_number(other)
    expected = saved(model, file, model_name="mine")
    torch.testing.assert_close(loaded(other, file, model_name="mine"), expected, rtol=1e-3, atol=0)
    for name, found in (("yours", "yours"), (None, None)):
        with pytest.raises(ValueError, match=f"model_name is mine in the file, and {found} here"):
            loaded(model, file, model_name=name)
    with pytest.raises(ValueError, match="class is LlamaForCausalLM in the file"):
        loaded(built(CONFIGS["qwen2"], torch.float32), file, model_name="mine")
    with pytest.raises(ValueError, match="model_name = '' must be"):
        saved(model, file, model_name="")
    saved(model, file)
    with pytest.raises(ValueError, match="model_name is None in the file, and mine here"):
        loaded(model, file, model_name="mine")
