"""kvpress both ways: the same keep sets, in both libraries' own runs. `make kvpress` runs this."""

import sys
from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig, pipeline
from transformers.models.llama import LlamaForCausalLM

from kvlab.fast import compress
from kvlab.reference import methods
from kvlab.reference.generators import seeded
from kvlab.reference.models import reasoner_directory
from support.outside import methods_named
from support.tables import cases

kvpress = pytest.importorskip("kvpress", reason="needs kvpress, in an environment of its own")
kvzap, statistics = (
    import_module(f"kvpress.presses.{name}")
    for name in ("kvzap_press", "expected_attention_with_stats")
)
press = import_module("kvlab.fast").press
bridge = import_module("kvlab.fast.bridges.kvpress")

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
    keys: list[Any] = [layer.keys for layer in cache.layers]
    return keys


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


# --- every press against itself ------------------------------------------------------------------

THE_SAME = (
    *("CURPress", "CURPress@use_random_leverage=True", "CapPress", "CompactorPress"),
    *("CompactorPress@blending=0.0", "CompactorPress@sketch_dimension=4"),
    *("ExpectedAttentionPress", "ExpectedAttentionStatsPress"),
    *("KVzapPress", "KVzapPress@model_type=linear", "KeyDiffPress", "KnormPress"),
    *("LagKVPress@lag_size=16", "LagKVPress@lag_size=8,cross_scoring=True"),
    *("LeverageScorePress", "LeverageScorePress@sketch_dimension=4"),
    *("NonCausalAttnPress", "NonCausalAttnPress@chunk_size=32", "QFilterPress", "RandomPress"),
    *("RandomPress@seed=7", "SnapKVPress@window_size=16", "StreamingLLMPress", "TOVAPress"),
)
"""Every scorer press of kvpress that is a method."""
DRAWING = (
    *("CURPress@use_random_leverage=True", "CompactorPress@sketch_dimension=4", "RandomPress"),
    "LeverageScorePress@sketch_dimension=4",
)

WRAPS, ITS_OWN = "wraps other presses", "does more than rate entries, in "
REFUSED = {
    **dict.fromkeys(("AdaKVPress", "BlockPress", "CAMPress", "ChunkKVPress", "ChunkPress"), WRAPS),
    **dict.fromkeys(("ComposedPress", "CompressionRatioDecodingPress", "DMSPress"), WRAPS),
    **dict.fromkeys(("CriticalAdaKVPress", "CriticalKVPress", "DecodingPress"), WRAPS),
    **dict.fromkeys(("EntropyGatedChunkKVPress", "KeyRerotationPress", "LUKVPress"), WRAPS),
    **dict.fromkeys(("MergingPress", "PerLayerCompressionPress", "PrefillDecodingPress"), WRAPS),
    **dict.fromkeys(("DuoAttentionPress", "FinchPress", "SimLayerKVPress"), f"{ITS_OWN}compress"),
    **dict.fromkeys(("PyramidKVPress", "ThinKPress"), f"{ITS_OWN}compress"),
    **dict.fromkeys(("FastKVzipPress", "KVComposePress", "KVgradPress", "KVzipPress"), ITS_OWN),
    **dict.fromkeys(("RestoreKVPress", "BasePress"), ITS_OWN),
    "ObservedAttentionPress": "reads the attention weights of the whole prompt",
    "ScorerPress": "rates nothing",
}
"""The other presses, and why they are no methods."""


def name_of(spec):
    return spec.partition("@")[0]


def test_every_press_of_kvpress_is_compared_with_itself_or_refused():
    presses = {name for name in kvpress.__all__ if name.endswith("Press")}
    assert presses == {*map(name_of, THE_SAME), *REFUSED}
    assert len(presses) == 46


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_more_than_a_score_is_no_method(name):
    with pytest.raises(ValueError, match=rf"kvpress:{name} {REFUSED[name]}.*must be one of CURP"):
        methods.get(f"kvpress:{name}", KEPT)


@pytest.fixture
def weights(monkeypatch):
    """Weights for the presses that fetch theirs for a model of the hub: these are drawn."""

    def drawn(make):
        def of_name(*_, **__):
            with seeded(0):
                return make()

        return staticmethod(of_name)

    def of(config):
        layers, heads = config.num_hidden_layers, config.num_attention_heads
        channels, groups = config.hidden_size // heads, config.num_key_value_heads
        found = statistics.ExpectedAttentionStats(layers, heads, channels, "", "", 1, 1, 4)
        with seeded(0):
            torch.nn.init.normal_(found.query_mean)
            torch.nn.init.normal_(found.query_cov, std=0.1)
        zap = kvzap.KVzapConfig(
            input_dim=config.hidden_size, output_dim=groups, n_modules=layers, hidden_dim=8
        )
        for owner, name, make in (
            (kvpress.QFilterPress, "load_q_filters", lambda: torch.randn(layers, groups, channels)),
            (kvzap.KVzapModel, "from_pretrained", lambda: kvzap.KVzapModel(zap)),
            (statistics.ExpectedAttentionStats, "from_pretrained", lambda: found),
        ):
            monkeypatch.setattr(owner, name, drawn(make))

    return of


def heads_apart(model, ids, spec, ratio, method=None):
    """Return the heads that keep other entries under a press of kvpress than under a method.

    The press is run by kvpress, and draws what the method draws.
    """
    name, options = name_of(spec), methods.read(f"kvpress:{spec}").method
    own = {key: getattr(options, key) for key, *_ in bridge.options_of(getattr(kvpress, name))}
    theirs = getattr(kvpress, name)(ratio, **own)
    compress_once = theirs.compress

    def compress_seeded(module, *given):
        with seeded(0, module.layer_idx, ids.shape[1]):
            return compress_once(module, *given)

    theirs.compress = compress_seeded
    whole, wanted = (under(each, model, ids) for each in (kvpress.KnormPress(0.0), theirs))
    kept = [
        {*(entries[:, None] == some).all(dim=-1).int().argmax(dim=0).tolist()}
        for layers in zip(whole, wanted, strict=True)
        for entries, some in zip(*(layer[0] for layer in layers), strict=True)
    ]
    with (
        torch.inference_mode(),
        compress(model, method or f"kvpress:{spec}", len(kept[0])) as cache,
    ):
        model(ids, past_key_values=cache)
        ours = [
            head for each in cache.text.layers.copies() for head in each.columns["positions"][0]
        ]
    assert len(kept) == len(ours) and all(map(len, kept))
    return [n for n, head in enumerate(ours) if {*head.tolist()} != kept[n]]


@pytest.mark.parametrize("ratio", [0.25, 0.5])
@pytest.mark.parametrize("spec", THE_SAME)
def test_a_press_keeps_what_it_keeps_in_kvpress(spec, ratio, model, ids, weights):
    weights(model.config)
    assert heads_apart(model, ids[:1], spec, ratio) == []


@pytest.mark.parametrize("spec", DRAWING)
def test_another_seed_is_another_draw(spec, model, ids):
    sign = "," if "@" in spec else "@"
    other = f"kvpress:{spec}{sign}draw_seed=1"
    assert heads_apart(model, ids[:1], spec, 0.5, other) == [0, 1, 2, 3]
    assert methods.read(f"kvpress:{spec}").seeded(1) == other
    assert methods.read(f"random:{other}").seeded(2) == f"random:{other},seed=2"


def test_a_press_that_draws_is_the_same_alone_and_in_company_and_leaves_the_generators(model, ids):
    spec, before = "kvpress:LeverageScorePress", torch.get_rng_state()
    both = compressed(model, ids, spec)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(5)
    for row in (0, 1):
        alone = compressed(model, ids[[row]], spec)
        assert_same(alone, [layer[[row]] for layer in both])


def test_compactor_blends_by_the_share_that_is_removed(model, ids):
    spec, other = "CompactorPress", "kvpress:CompactorPress@blending="
    assert heads_apart(model, ids[:1], spec, 0.5, f"{other}0.0") == [0, 1, 2, 3]
    assert heads_apart(model, ids[:1], spec, 0.5, f"{other}0.5") == []


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_the_ratio_of_a_press_keeps_as_many_as_the_budget(both):
    entries, kept = both
    press = kvpress.KnormPress(0.25)
    with bridge.compressing(press, entries, kept):
        assert 0 <= press.compression_ratio == pytest.approx(1 - kept / entries, abs=1e-12)
        assert int(entries * (1 - press.compression_ratio)) == kept
    assert press.compression_ratio == 0.25


@pytest.mark.parametrize(
    "name", ["CompactorPress", "KVzapPress", "LeverageScorePress", "NonCausalAttnPress"]
)
def test_a_press_of_whole_prompts_does_not_rate_during_generation(name):
    with pytest.raises(ValueError, match=f"must be 'after_prefill' for kvpress:{name}, which rate"):
        methods.get(f"kvpress:{name}@schedule=every_block", KEPT)


@cases(__file__, "what_a_press_cannot_rate_is_refused_by_its_name", "spec budget why")
def test_what_a_press_cannot_rate_is_refused_by_its_name(spec, budget, why, model, ids):
    cannot = rf"kvpress:{name_of(spec)} cannot keep {budget} of 96 entries: {why}"
    with pytest.raises(ValueError, match=cannot):
        compressed(model, ids, f"kvpress:{spec}", budget)


# --- in kvlab's runs -----------------------------------------------------------------------------


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
