"""kvpress both ways: the same keep sets, in both libraries' own runs. `make kvpress` runs this."""

import sys
from importlib import import_module

import pytest
import torch
from outside import methods_named
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig, pipeline
from transformers.models.llama import LlamaForCausalLM

from kvlab.fast import compress
from kvlab.reference import methods
from kvlab.reference.models import reasoner_directory

kvpress = pytest.importorskip("kvpress", reason="needs kvpress, in an environment of its own")
press = import_module("kvlab.fast").press

TOKENS, KEPT = 96, 48
SAME = {
    "SnapKVPress": ({"window_size": 16}, "snapkv@window=16"),
    "TOVAPress": ({}, "tova@recent=1"),
    "KnormPress": ({}, "knorm"),
    "StreamingLLMPress": ({}, "streaming_llm"),
    "KeyDiffPress": ({}, "keydiff"),
    "ExpectedAttentionPress": (
        {"n_future_positions": 32},
        "expected_attention@ahead=32,epsilon=0.0",
    ),
}
"""Presses with their options, and the method of kvlab that keeps the same entries."""


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=256, **sizes, **heads)).double().eval()


@pytest.fixture
def ids():
    """Two texts in which no token comes twice: equal keys would tie."""
    generator = torch.Generator().manual_seed(1)
    return torch.stack([torch.randperm(256, generator=generator)[:TOKENS] for _ in range(2)])


def under(press, model, ids):
    """Return the keys that a press leaves of a prompt, layer by layer."""
    cache = DynamicCache()
    with torch.inference_mode(), press(model):
        model(ids, past_key_values=cache)
    return [layer.keys for layer in cache.layers]


def compressed(model, ids, method, budget=KEPT, **options):
    with torch.inference_mode(), compress(model, method, budget, **options) as cache:
        model(ids, past_key_values=cache)
        return [layer.columns["keys"] for layer in cache.text.layers.copies()]


def in_one_order(keys):
    return [layer.gather(2, layer[..., :1].argsort(2).expand_as(layer)) for layer in keys]


def assert_same(ours, theirs):
    for own, their in zip(in_one_order(ours), in_one_order(theirs), strict=True):
        torch.testing.assert_close(own, their)


def written(options):
    return "@" * bool(options) + ",".join(f"{name}={value}" for name, value in options.items())


@pytest.mark.parametrize("name", SAME)
def test_presses_methods_and_methods_as_presses_keep_the_same_entries(name, model, ids):
    options, method = SAME[name]
    theirs = under(getattr(kvpress, name)(0.5, **options), model, ids)
    assert theirs[0].shape[2] == KEPT
    assert_same(compressed(model, ids, f"kvpress:{name}{written(options)}"), theirs)
    assert_same(compressed(model, ids, method), theirs)
    assert_same(under(press(method, 0.5), model, ids), theirs)


def test_a_press_of_another_budget_keeps_other_entries(model, ids):
    theirs = under(kvpress.KnormPress(0.25), model, ids)
    with pytest.raises(AssertionError):
        assert_same(compressed(model, ids, "kvpress:KnormPress"), theirs)


@pytest.mark.parametrize("name", ["SnapKVPress", "LagKVPress", "ExpectedAttentionPress"])
def test_blocks_and_padding_change_nothing(name, model, ids):
    options = {"SnapKVPress": {"window_size": 16}, "LagKVPress": {"lag_size": 16}}.get(name, {})
    spec = f"kvpress:{name}{written(options)}"
    alone = compressed(model, ids, spec)
    assert_same(compressed(model, ids, spec, block_size=32), alone)
    padded = torch.cat([torch.zeros_like(ids[:1, :9]), ids[:1]], dim=1)
    both = torch.cat([padded, torch.cat([ids[1:, :9], ids[1:]], dim=1)])
    mask = torch.ones_like(both)
    mask[0, :9] = 0
    with torch.inference_mode(), compress(model, spec, KEPT) as cache:
        model(both, attention_mask=mask, past_key_values=cache)
        found = [layer.columns["keys"][:1] for layer in cache.text.layers.copies()]
    assert_same(found, [layer[:1] for layer in alone])


def test_a_press_evicts_at_every_step_and_its_control_protects_the_same(model, ids):
    spec = "kvpress:SnapKVPress@window_size=16,schedule=every_block"
    with torch.inference_mode(), compress(model, spec, KEPT) as cache:
        for part in (ids, *ids.T[:4, :, None]):
            model(part, past_key_values=cache)
            assert {count for layer in cache.text.layers.kept for count in layer} == {KEPT}
    own, control = methods.get(spec, KEPT), methods.get(f"random:{spec}", KEPT)
    assert own.protect == control.protect != methods.get("kvpress:KnormPress", KEPT).protect
    assert own.schedule == control.schedule


OWN = """
from dataclasses import dataclass
from kvpress import ScorerPress

@dataclass
class LongValuesPress(ScorerPress):
    n_sink: int = 2
    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        scores = values.norm(dim=-1)
        scores[..., : self.n_sink] = float("inf")
        return scores
"""


def test_a_press_in_a_file_of_ones_own_is_a_method(tmp_path, model, ids):
    (tmp_path / "own_press.py").write_text(OWN)
    spec = "kvpress:LongValuesPress"
    with methods_named(tmp_path / "own_press.py"):
        press = methods.read(spec)
        assert press.from_outside and methods.discover()
        theirs = under(sys.modules["own_press"].LongValuesPress(0.5, n_sink=3), model, ids)
        assert_same(compressed(model, ids, f"{spec}@n_sink=3"), theirs)
        assert methods.get(f"random:{spec}", KEPT).protect == methods.get(spec, KEPT).protect
        with pytest.raises(ValueError, match=r"must be one of .*KnormPress.*LongValuesPress"):
            methods.get("kvpress:ShortValuesPress", KEPT)
    (tmp_path / "none.py").write_text("from kvpress import KnormPress, ScorerPress")
    with methods_named(tmp_path / "none.py"), pytest.raises(ValueError, match="and no press"):
        methods.names()


def test_a_method_runs_in_the_pipeline_of_kvpress():
    directory = str(reasoner_directory())
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    pipe = pipeline("kv-press-text-generation", model=model, tokenizer=tokenizer)
    text = "a = 3 ; b = a + 4 ; c = b - 2 ; " * 6
    presses = press("snapkv@window=8", 0.5), kvpress.SnapKVPress(0.5, window_size=8)
    ours, theirs = (pipe(text, question="c?", press=each, max_new_tokens=8) for each in presses)
    assert ours == theirs


@pytest.mark.parametrize(
    "method",
    ["lazy_eviction", "kivi", "h2o@kv_heads=model", "full", "expected_attention@values=projected"],
)
def test_what_is_more_than_an_eviction_after_the_prompt_is_no_press(method):
    with pytest.raises(ValueError, match="to be a press"):
        press(method, 0.5)


@pytest.mark.parametrize("name", ["ObservedAttentionPress", "CriticalKVPress", "PyramidKVPress"])
def test_what_is_more_than_a_score_is_no_method(name):
    with pytest.raises(ValueError, match="must be one of CURPress"):
        methods.get(f"kvpress:{name}", KEPT)
