"""A saved context is of one model: of all that computes keys and values, whoever holds it."""

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import accelerate
import peft
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    QuantoConfig,
    TorchAoConfig,
)

from kvlab.fast import compress
from kvlab.fast.huggingface.identity import digest_of
from support.models import CONFIGS, SHAPE, built, prompts

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


# --- reading changes nothing ----------------------------------------------------------------------


def bits_and_bytes(**options):
    return "bitsandbytes", lambda _: BitsAndBytesConfig(**options)


def quantised_by(package, configuration):
    """Return what loads a model as a package quantises it; the test is skipped without it."""

    def make(folder):
        library = pytest.importorskip(package, reason=f"{package} is in no extra of kvlab")
        if not (folder / "model").exists():
            model_of(intermediate_size=128).save_pretrained(folder / "model")
        options = {"quantization_config": configuration(library), "device_map": "cpu"}
        return AutoModelForCausalLM.from_pretrained(folder / "model", **options).eval()

    return make


def offloaded_by(how):
    def make(folder):
        model_of().save_pretrained(folder / "model")
        (folder / how).mkdir(exist_ok=True)
        return offloaded(how, folder / "model", folder / how)

    return make


def eager_of_torch(dtype):
    convert = torch.ao.quantization.quantize_dynamic
    return lambda _: convert(model_of(), {nn.Linear}, dtype=dtype)


HELD = {
    "float32": lambda _: model_of(),
    "bfloat16": lambda _: model_of().bfloat16(),
    "tied": lambda _: model_of(tie_word_embeddings=True),
    "offloaded to the host": offloaded_by("host"),
    "offloaded to the disk": offloaded_by("disk"),
    "adapters of PEFT": lambda _: adapted("one", "two")[0],
    "codes and scales": lambda _: quantised(),
    "float8": lambda _: in_float8(),
    "a subclass of Tensor": lambda _: of_two_tensors(),
    "8 bits, by PyTorch": eager_of_torch(torch.qint8),
    "16 bits, by PyTorch": eager_of_torch(torch.float16),
    "4 bits": quantised_by(*bits_and_bytes(load_in_4bit=True, bnb_4bit_quant_type="nf4")),
    "4 bits, twice": quantised_by(
        *bits_and_bytes(
            load_in_4bit=True,
            bnb_4bit_use_double_quant=True,
            bnb_4bit_quant_storage=torch.bfloat16,
        )
    ),
    "8 bits": quantised_by(*bits_and_bytes(load_in_8bit=True)),
    "quanto": quantised_by("optimum.quanto", lambda _: QuantoConfig(weights="int8")),
    "torchao": quantised_by(
        "torchao.quantization", lambda library: TorchAoConfig(library.Int8WeightOnlyConfig())
    ),
}
ROUGH = {"8 bits, by PyTorch", "16 bits, by PyTorch"}
"""They scale all tokens of a call alike, so that no text agrees with itself in pieces."""


def in_float8():
    """Return a model whose queries come from weights in float8, as transformers' FP8 linear."""
    model = quantised()
    for layer in model.model.layers:
        projection = layer.self_attn.k_proj
        weight = projection.weight.detach().float().to(torch.float8_e4m3fn)
        projection.weight = nn.Parameter(weight, requires_grad=False)
        projection.forward = lambda x, of=projection: nn.functional.linear(
            x, of.weight.float() * of.scale
        )
    return model


def attributes(model):
    """Return everything that modules, configurations and hooks hold, each as the object it is."""
    configurations = {id(x.config): x.config for x in model.modules() if hasattr(x, "config")}
    owners = (*model.modules(), *configurations.values(), model.generation_config)
    return [
        {
            **vars(owner),
            **{
                (name, key): each
                for name, held in vars(owner).items()
                if isinstance(held, dict)
                for key, each in held.items()
                if not getattr(each, "is_meta", False)  # accelerate makes it anew at every call
            },
        }
        for owner in owners
    ]


@pytest.mark.parametrize("way", HELD)
@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_a_model_is_the_same_after_it_was_read(way, tmp_path):
    model, file = HELD[way](tmp_path), tmp_path / "file"
    with torch.no_grad():
        expected = model(TEXT).logits
    before, drawn = attributes(model), torch.get_rng_state()
    fresh = HELD[way](tmp_path)
    assert digest_of(fresh) == digest_of(model)
    with compress(model, "h2o", 10, verify=way not in ROUGH) as cache:
        model(TEXT, past_key_values=cache)
        other = cache.copy()
        cache.save(file)
        found = logits_of(model, cache)
        assert torch.equal(logits_of(model, other), found)
    with compress(fresh, "h2o", 10, verify=False) as cache:
        cache.load(file)
        assert torch.equal(logits_of(fresh, cache), found)
    for now, then in zip(attributes(model), before, strict=True):
        assert now.keys() == then.keys()
        assert [name for name in then if now[name] is not then[name]] == []
    assert torch.equal(torch.get_rng_state(), drawn)
    with torch.no_grad():
        assert torch.equal(model(TEXT).logits, expected)


def test_comparing_tokens_leaves_the_frequencies_of_the_last_text():
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    model = model_of(max_position_embeddings=16, rope_parameters=rope)
    model(prompts([40])["input_ids"])
    before = attributes(model)
    compress(model, "h2o", 10).close()
    for now, then in zip(attributes(model), before, strict=True):
        assert [name for name in then if now[name] is not then[name]] == []


class UnpackedToBeSaved(Quantised):
    """Its weights are other ones after somebody has asked how to save them."""

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        self.weight.data.neg_()
        super()._save_to_state_dict(destination, prefix, keep_vars)


class WithMore(Quantised):
    """It has a state that only it can tell, and tells it once."""

    def get_extra_state(self):
        self.scale.zero_()
        return {"scale": 1.0}


@pytest.mark.parametrize("kind", [UnpackedToBeSaved, WithMore])
def test_a_module_that_only_itself_can_save_needs_a_name(kind, tmp_path):
    model, file = quantised(), tmp_path / "file"
    with torch.no_grad():
        expected = model(TEXT).logits
    model.model.layers[1].self_attn.k_proj.__class__ = kind
    words = rf"layers.1.self_attn.k_proj of the model is a {kind.__name__}, .* model_name"
    with pytest.raises(ValueError, match=words):
        saved(model, file)
    stored = saved(model, file, model_name="mine")
    torch.testing.assert_close(loaded(model, file, model_name="mine"), stored)
    with torch.no_grad():
        assert torch.equal(model(TEXT).logits, expected)


def test_weights_that_the_first_call_unpacks_need_that_call(tmp_path):
    """compressed-tensors puts a hook under this name into models that are not yet unpacked."""
    model, file = model_of(), tmp_path / "file"
    saved(model, file)
    model.ct_decompress_hook = None
    with pytest.raises(ValueError, match=r"compressed until its first call: call it once"):
        loaded(model, file)
    del model.ct_decompress_hook
    loaded(model, file)


def in_4_bits(rows=64, columns=64, block=64):
    """Return a weight as bitsandbytes holds it in 4 bits, before the first call."""
    draw = torch.Generator().manual_seed(2)
    weight = torch.randint(256, (rows * columns // 2, 1), generator=draw, dtype=torch.uint8)
    weight.quant_state = SimpleNamespace(
        absmax=torch.rand(rows * columns // block, generator=draw),
        shape=torch.Size((rows, columns)),
        code=torch.rand(16, generator=draw),
        blocksize=block,
        dtype=torch.float32,
        nested=False,
    )
    return weight


def packed(weight):
    """Return the same in the order of its packing for CPUs, entry by entry."""
    state = deepcopy(weight.quant_state)
    rows, columns = state.shape
    code = lambda i: (int(weight[i // 2, 0]) >> (4 if i % 2 == 0 else 0)) & 15  # noqa: E731
    octets = []
    for first in range(0, rows, 32):
        for pair in range(0, columns, 2):
            block = [
                code((first + row) * columns + pair + half) for row in range(32) for half in (0, 1)
            ]
            octets += [block[i] | block[32 + i] << 4 for i in range(32)]
    other = torch.tensor(octets, dtype=torch.uint8).view(rows, columns // 2)
    scales = state.absmax.view(rows, columns // state.blocksize)
    state.absmax, state.dtype = scales.T.bfloat16().contiguous(), torch.bfloat16
    state.packing_format_for_cpu, state.original_dtype = True, torch.float32
    other.quant_state = state
    return other


def twice(weight):
    """Return the same whose scales are quantised, too, and the scales that they stand for."""
    state, draw = weight.quant_state, torch.Generator().manual_seed(3)
    codes = torch.randint(256, state.absmax.shape, generator=draw, dtype=torch.uint8)
    second = SimpleNamespace(
        absmax=torch.tensor([0.5, 2.0]), code=torch.rand(256, generator=draw), blocksize=40
    )
    found = [second.code[c] * second.absmax[i // 40] + 0.25 for i, c in enumerate(codes.tolist())]
    other = weight.clone()
    other.quant_state = deepcopy(state)
    vars(other.quant_state).update(absmax=codes, state2=second, offset=0.25, nested=True)
    state.absmax = torch.stack(found)
    return other


def digest_with(weight):
    module = nn.Linear(64, 64, bias=False)
    state = weight.quant_state
    module.weight = nn.Parameter(weight, requires_grad=False)
    module.weight.quant_state = state
    return digest_of(module)


@pytest.mark.parametrize("nested", [False, True])
def test_packing_4_bits_for_a_cpu_does_not_count(nested):
    weight = in_4_bits()
    before = twice(weight) if nested else weight
    expected = digest_with(before)
    assert digest_with(packed(weight)) == expected
    for weights, change in (
        (before, lambda x: x.__setitem__((7, 0), x[7, 0] ^ 16)),
        (packed(weight), lambda x: x.__setitem__((33, 5), x[33, 5] ^ 1)),
        (before, lambda x: x.quant_state.code.__setitem__(3, 9.0)),
        (in_4_bits(), lambda x: x.quant_state.absmax.__setitem__(5, 9.0)),
    ):
        change(weights)
        assert digest_with(weights) != expected


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
