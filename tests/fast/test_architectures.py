"""Models that were once silently wrong under `compress` are right now, or refused."""

import copy
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText, DynamicCache

from kvlab.fast import compress
from kvlab.fast.huggingface import agreement
from study import architectures
from support.architectures import (
    ALTERNATING,
    SMALL_EXPERTS,
    TEXT,
    VISION,
    built,
    close,
    eager,
    gemma3_with_vision,
    qwen_with_vision,
    text_model,
)
from support.models import prompts, tiny
from support.tables import cases

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
SHARED = {**ALTERNATING, "num_kv_shared_layers": 2}
SPARSE = {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2, "index_block_size": 4}


# --- mended ---


@pytest.mark.parametrize("block_size", [None, 5])
def test_text_of_gemma3_with_token_types_keeps_its_window(block_size):
    model, ids = gemma3_with_vision(), prompts([21])["input_ids"]
    types = torch.zeros_like(ids)
    expected = eager(model, input_ids=ids, token_type_ids=types)
    without_window = copy.deepcopy(model)
    for layer in without_window.model.language_model.layers:
        layer.self_attn.sliding_window = None
    without_window.config.text_config.sliding_window = 99
    assert (eager(without_window, input_ids=ids, token_type_ids=types) - expected).abs().max() > 0.1
    with compress(model, "full", block_size=block_size) as cache, torch.no_grad():
        found = model(input_ids=ids, token_type_ids=types, past_key_values=cache).logits
    close(found, expected)


def test_a_model_remembers_its_own_image_after_compress():
    model = qwen_with_vision()
    ids, step = prompts([20])["input_ids"], torch.tensor([[7]])
    with torch.no_grad():
        stock = model(ids, use_cache=True).past_key_values
        model.model.rope_deltas = torch.tensor([[-3]])  # as after an image
        expected = model(step, past_key_values=copy.deepcopy(stock)).logits
        with compress(model, "h2o", 10) as cache:
            model(prompts([30], seed=1)["input_ids"], past_key_values=cache)
        found = model(step, past_key_values=stock).logits
    assert torch.equal(found, expected)


def test_an_image_has_the_positions_that_the_model_gives_it():
    """In a plain call; `generate` hands the positions over."""
    model = qwen_with_vision()
    ids = prompts([20])["input_ids"] % 80 + 3
    ids[0, 4:6] = torch.tensor([92, 90])
    types = (ids == 90).int()
    image = {
        "pixel_values": torch.randn(4, 96, generator=torch.Generator().manual_seed(0)),
        "image_grid_thw": torch.tensor([[1, 2, 2]]),
        "mm_token_type_ids": types,
    }
    expected = eager(model, input_ids=ids, **image)
    step = torch.tensor([[7]])
    with torch.no_grad():
        model.model.rope_deltas = None
        stock = model(input_ids=ids, **image, use_cache=True)
        expected_step = model(input_ids=step, past_key_values=stock.past_key_values).logits
    model.model.rope_deltas = None
    with compress(model, "full") as cache, torch.no_grad():
        found = model(input_ids=ids, **image, past_key_values=cache).logits
        found_step = model(input_ids=step, past_key_values=cache).logits
    close(found, expected)
    close(found_step, expected_step)
    with (
        compress(model, "full", block_size=5) as cache,
        pytest.raises(ValueError, match="without block_size"),
    ):
        model(input_ids=ids, **image, past_key_values=cache)


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        (lambda cache: cache.batch_select_indices(torch.tensor([1])), [1]),
        (lambda cache: cache.batch_select_indices(torch.tensor([1, 0])), [1, 0]),
        (lambda cache: cache.reorder_cache(torch.tensor([1, 1])), [1, 1]),
        (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1]),
    ],
)
def test_the_offset_of_an_image_moves_with_its_row(change, rows):
    """Of 2 x 4 and of 1 x 8 patches: as many tokens, and other positions after them."""
    model, step = qwen_with_vision(), torch.tensor([[7, 8]])
    ids = prompts([20, 20])["input_ids"] % 80 + 3
    ids[:, 4:13] = torch.tensor([92, *[90] * 8])
    pixels = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    grid, expected = torch.tensor([[1, 4, 8], [1, 2, 16]]), []

    def given(ids, numbers):
        parts = torch.cat([pixels.split(32)[number] for number in numbers])
        more = {"pixel_values": parts, "image_grid_thw": grid[numbers]}
        return {"input_ids": ids, "mm_token_type_ids": (ids == 90).int(), **more}

    for number in (0, 1):
        model.model.rope_deltas = None
        whole = torch.cat([ids[number : number + 1], step], dim=1)
        expected.append(eager(model, **given(whole, [number]))[0, -2:])
    with compress(model, "full") as cache, torch.no_grad():
        model(**given(ids, [0, 1]), past_key_values=cache)
        change(cache)
        found = model(step.expand(len(rows), -1), past_key_values=cache).logits
    close(found, torch.stack([expected[row] for row in rows]))


def length_matters(kind: str):
    """A model whose frequencies change beyond 24 tokens."""
    rope = {"rope_type": kind, "rope_theta": 1e4, "original_max_position_embeddings": 24}
    if kind == "dynamic":
        limit = {"rope_parameters": {**rope, "factor": 4.0}, "max_position_embeddings": 24}
        return text_model("llama", "LlamaConfig", **limit)
    rope |= {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    limit = {"rope_parameters": rope, "original_max_position_embeddings": 24}
    return text_model("phi3", "Phi3Config", **limit)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_blocks_across_the_length_that_changes_frequencies_are_refused(kind):
    """Earlier blocks would keep the frequencies of a short text."""
    model, ids = length_matters(kind), prompts([40])["input_ids"]
    expected = eager(model, input_ids=ids)
    with compress(model, "full", block_size=6) as cache, torch.no_grad():
        with pytest.raises(ValueError, match=r"block_size = 6 .* 40 tokens.* beyond 24 tokens"):
            model(ids, past_key_values=cache)
        assert cache.get_seq_length() == 0
        found = model(ids[:, :24], past_key_values=cache).logits
    close(found, eager(model, input_ids=ids[:, :24]))
    with compress(model, "full") as cache, torch.no_grad():
        close(model(ids, past_key_values=cache).logits, expected)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
@pytest.mark.parametrize("pieces", [(19, 1, 20), (23, 1, 1, 1)], ids=["second turn", "decoding"])
def test_later_tokens_beyond_that_length_are_read_as_with_the_own_cache(kind, pieces):
    model, logits = length_matters(kind), []
    ids = prompts([sum(pieces)])["input_ids"]

    def read(cache):
        with torch.no_grad():
            parts = [model(part, past_key_values=cache).logits for part in ids.split(pieces, 1)]
        logits.append(torch.cat(parts, dim=1))

    read(DynamicCache(config=model.config))
    for block_size in (None, 20):
        with compress(model, "full", block_size=block_size) as cache:
            read(cache)
        close(logits.pop(), logits[0])


def test_generating_beyond_the_length_where_phi3_drops_its_cache_says_so():
    message = "a text of 24 .* beyond original_max_position_embeddings = 24.* more than 24 tokens"
    model = length_matters("longrope")
    with compress(model, "h2o", 12) as cache:
        with pytest.raises(ValueError, match=message):
            model.generate(**prompts([20]), past_key_values=cache, max_new_tokens=10)
        cache.reset()  # as it says
        given = {**prompts([25]), "past_key_values": cache, "max_new_tokens": 5, "min_length": 30}
        assert model.generate(**given).shape == (1, 30)


def test_generate_reads_a_prompt_beyond_that_length_as_the_model_alone_does():
    """Phi-3 gives no cache to the first call of such a prompt."""
    model, written = length_matters("longrope"), []
    for policy in (None, "full"):
        with compress(model, policy) if policy else nullcontext() as cache:
            inputs = {**prompts([40, 31]), "past_key_values": cache, "max_new_tokens": 6}
            written.append(model.generate(**inputs, do_sample=False, min_new_tokens=6))
    assert written[0].shape == (2, 46) and written[0].equal(written[1])


# --- refused ---


def paligemma():
    return built(
        AutoModelForImageTextToText,
        "paligemma",
        "PaliGemmaConfig",
        text_config={**TEXT, "model_type": "gemma", **BIDIRECTIONAL},
        vision_config={**VISION, "image_size": 8, "num_attention_heads": 2},
        image_token_index=90,
    )


BIDIRECTIONAL = {"use_bidirectional_attention": True}
PER_LAYER = {**SHARED, "hidden_size_per_layer_input": 8}
LATER = "lets tokens read later ones"
MASK = "mask that is not the causal one"
REFUSED = [
    ("gemma3n", "Gemma3nTextConfig", PER_LAYER, "attends to the keys of layer"),
    ("gemma4", "Gemma4TextConfig", PER_LAYER, "attends to the keys of layer"),
    ("diffllama", "DiffLlamaConfig", {}, "attends twice to the same keys"),
    ("minimax_m3_vl", "MiniMaxM3VLTextConfig", SPARSE | SMALL_EXPERTS, "layers of another kind"),
    ("doge", "DogeConfig", {"keep_window_size": 4}, MASK),
    ("gemma3", "Gemma3TextConfig", ALTERNATING | BIDIRECTIONAL, f"{MASK}|{LATER}"),
    ("gemma", "GemmaConfig", BIDIRECTIONAL, LATER),
    ("gemma2", "Gemma2Config", ALTERNATING | BIDIRECTIONAL, LATER),
    ("gpt_oss", "GptOssConfig", ALTERNATING | SMALL_EXPERTS, "learned sinks"),
    ("paligemma", None, {}, LATER),
]


@pytest.mark.parametrize(("module", "config", "options", "message"), REFUSED)
@pytest.mark.parametrize("verify", [True, False])
def test_what_kvlab_does_not_know_is_refused(module, config, options, message, verify):
    model = text_model(module, config, **options) if config else paligemma()
    with (
        pytest.raises(ValueError, match=rf"({message}).*without compress\(\)"),
        compress(model, "full", verify=verify) as cache,
    ):
        model(**prompts([21, 13]), past_key_values=cache)
    assert model.config._attn_implementation != "kvlab"


@pytest.mark.parametrize("verify", [True, False])
def test_a_prefix_whose_tokens_read_each_other_is_refused(verify):
    """As PaliGemma's prompts and Gemma 3's images: the mask is known with the prompt only."""
    model, ids = gemma3_with_vision(), prompts([21])["input_ids"]
    types = torch.zeros_like(ids)
    types[0, 3:7] = 1
    assert (
        eager(model, input_ids=ids, token_type_ids=types)
        - eager(model, input_ids=ids, token_type_ids=torch.zeros_like(ids))
    ).abs().max() > 0.1
    with (
        compress(model, "full", verify=verify) as cache,
        pytest.raises(ValueError, match="mask that is not the causal one"),
    ):
        model(input_ids=ids, token_type_ids=types, past_key_values=cache)


HYBRIDS = [
    ("lfm2", "Lfm2ForCausalLM"),
    ("qwen3_next", "Qwen3NextForCausalLM"),
    pytest.param("granitemoehybrid", "GraniteMoeHybridForCausalLM", marks=pytest.mark.slow),
    pytest.param("nemotron_h", "NemotronHForCausalLM", marks=pytest.mark.slow),
    pytest.param("olmo_hybrid", "OlmoHybridForCausalLM", marks=pytest.mark.slow),
    pytest.param("qwen3_5_text", "Qwen3_5ForCausalLM", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("architecture", "name"), HYBRIDS)
def test_recurrent_layers_that_go_on_with_their_state_read_a_text_in_pieces(architecture, name):
    """A row with fewer blocks begins with the second one."""
    model, inputs = architectures._build(architecture, name), prompts([21, 16])
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    real = mask.bool()
    expected = agreement.stock_logits(model, ids, real).detach()
    with compress(model, "full", block_size=5) as cache, torch.no_grad():
        found = [model(ids[:, :12], attention_mask=mask[:, :12], past_key_values=cache).logits]
        found.append(model(ids[:, 12:], attention_mask=mask, past_key_values=cache).logits)
    close(torch.cat(found, dim=1)[real], expected[real])
    with compress(model, "full", block_size=5) as cache:
        with pytest.raises(ValueError, match=r"before a row's last block.* without block_size"):
            model(**prompts([21, 13]), past_key_values=cache)
        assert cache.get_seq_length() == 0
    with pytest.raises(ValueError, match=r"block_size = 5.*verify=True"):
        compress(model, "full", block_size=5, verify=False)


def test_recurrent_layers_are_given_no_padding_before_a_second_text():
    """Their state would read it; and not all can repeat rows, which is said before any does."""
    model, ids = architectures._build(*HYBRIDS[0]), prompts([12, 12])["input_ids"]
    mask = torch.ones(2, 17, dtype=torch.long)
    mask[1, 12:15] = 0
    with compress(model, "full") as cache, torch.no_grad():
        model(ids, past_key_values=cache)
        with pytest.raises(ValueError, match="attention_mask: this model's recurrent layers"):
            model(ids[:, :5], attention_mask=mask, past_key_values=cache)
        with pytest.raises(ValueError, match=r"batch_repeat_interleave: .* cannot"):
            cache.batch_repeat_interleave(2)
        assert cache.kept()[0] == (12, 12)
        model(ids[:, :5], past_key_values=cache)


def jamba():
    odd = {"attn_layer_period": 2, "attn_layer_offset": 1}
    return text_model("jamba", "JambaConfig", **odd, num_experts=2, use_mamba_kernels=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pieces_are_compared_before_rounding_can_hide_them(dtype):
    assert not agreement.reads_in_pieces(jamba().to(dtype))
    assert agreement.reads_in_pieces(architectures._build(*HYBRIDS[0]).to(dtype))


def test_recurrent_layers_that_begin_anew_read_a_text_as_a_whole():
    model = jamba()
    ids = prompts([12])["input_ids"]
    with pytest.raises(ValueError, match="without block_size"), compress(model, "full", None, 5):
        pass
    expected = eager(model, input_ids=ids)
    with compress(model, "full") as cache, torch.no_grad():
        found = [model(ids[:, :10], past_key_values=cache).logits]
        found += [model(ids[:, i : i + 1], past_key_values=cache).logits for i in (10, 11)]
        close(torch.cat(found, dim=1), expected)
        with pytest.raises(ValueError, match=r"second text of 12 tokens.*reset\(\)"):
            model(ids, past_key_values=cache)
        cache.reset()
        close(model(ids, past_key_values=cache).logits, expected)


@pytest.mark.parametrize("argument", ["position_bias", "block_indices"])
@pytest.mark.parametrize("number", [0, 5], ids=["left alone", "compressed"])
def test_an_argument_that_attention_does_not_know_is_refused(argument, number):
    model = copy.deepcopy(tiny("gemma3", torch.float32))
    layer = model.model.layers[number].self_attn
    own = layer.forward
    layer.forward = lambda *args, **kwargs: own(*args, **kwargs, **{argument: torch.zeros(1)})
    with (
        compress(model, "full", verify=False) as cache,
        pytest.raises(ValueError, match=f"argument {argument}, which kvlab does not know"),
    ):
        model(**prompts([12]), past_key_values=cache)


# --- the probe ---


@pytest.fixture
def unproven(monkeypatch):
    """Let nothing have been compared yet; return the comparisons."""
    asked = []
    compared = agreement._compared
    monkeypatch.setattr(agreement, "_differences", {})
    monkeypatch.setattr(
        agreement, "_compared", lambda *given: asked.append(given) or compared(*given)
    )
    return asked


def test_a_model_proves_itself_once_per_class_configuration_and_number_format(unproven):
    for _ in range(2):
        compress(tiny("llama"), "h2o", 12).close()
    compress(copy.deepcopy(tiny("llama")), "full").close()
    assert len(unproven) == 1
    with compress(tiny("llama", torch.float32), "full"), compress(tiny("qwen2"), "full"):
        pass
    assert len(unproven) == 3
    changed = copy.deepcopy(tiny("llama"))
    changed.config.rms_norm_eps = 1e-3
    compress(changed, "full", verify=False).close()
    assert len(unproven) == 3
    compress(changed, "full").close()
    assert len(unproven) == 4


def broken(model, when):
    """Return a copy of a model whose values are wrong in calls that ``when`` picks."""
    model = copy.deepcopy(model)
    layer = model.model.layers[1].self_attn
    own = layer.v_proj.forward
    compressed = lambda: model.config._attn_implementation == "kvlab"  # noqa: E731
    layer.v_proj.forward = lambda x: own(x) * (-4.0 if compressed() and when(x) else 1.0)
    return model


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("what", "when"),
    [
        ("a text read at once", lambda x: x.shape[1] == agreement.COLUMNS),
        (
            "the second block of a text|padded on the left",
            lambda x: x.shape[1] == agreement.BLOCK,
        ),
        ("one token after a text|the second block of a text", lambda x: x.shape[1] == 1),
    ],
)
def test_a_model_that_writes_something_else_is_refused_with_what_differs(
    unproven, what, when, dtype
):
    model = broken(tiny("llama", dtype), when)
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"({what}).*differ by.*verify=False"):
            compress(model, "h2o", 12)
    assert len(unproven) == 1
    assert model.config._attn_implementation != "kvlab"
    with compress(model, "h2o", 12, verify=False) as cache, torch.no_grad():
        model(**prompts([9]), past_key_values=cache)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_the_probe_reads_tokens_beyond_the_length_that_changes_frequencies(unproven, kind):
    model = length_matters(kind)
    rotary = model.model.rotary_emb
    own, seen = rotary.forward, []

    def turned_back(x, position_ids):
        seen.append(int(position_ids.max()))
        beyond = seen[-1] >= 24 and model.config._attn_implementation == "kvlab"
        return own(x, position_ids * (not beyond))

    rotary.forward = turned_back
    with pytest.raises(ValueError, match="tokens beyond 24: they differ by"):
        compress(model, "full")
    assert max(seen) == 25
    rotary.forward = own
    changed = copy.deepcopy(model)
    changed.config.rms_norm_eps = 2e-6
    with compress(changed, "full") as cache:
        assert cache.not_compared == ()


def test_a_cache_says_which_texts_were_not_compared(unproven):
    with compress(tiny("gemma2", torch.float32), "full") as cache:
        assert cache.not_compared == ("texts beyond the sliding window of 8 tokens",)
    with compress(tiny("llama"), "full") as cache:
        assert cache.not_compared == ()
    with compress(tiny("llama"), "full", verify=False) as cache:
        assert "verify = False" in cache.not_compared[0]


def test_the_probe_changes_no_model_and_no_random_numbers(unproven):
    model = copy.deepcopy(tiny("gemma2", torch.float32)).train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with compress(model, "full"):
        assert len(unproven) == 1
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), before)
    assert model.config._attn_implementation == "eager"


# --- every architecture of transformers ---


def test_the_page_has_no_architecture_that_is_wrong_and_few_that_are_not_built():
    text = PAGE.read_text(encoding="utf-8")
    assert "## Same" in text and "## Refused" in text and "## Wrong" not in text
    rows = text.split("## Not built")[1].strip().splitlines()[2:]
    assert 0 < len(rows) <= 15
    assert all(len(row.split(" | ")[-1]) > 20 for row in rows)


@cases(__file__, "the_sweep_tells_same_from_refused", "architecture name verdict why")
def test_the_sweep_tells_same_from_refused(architecture, name, verdict, why):
    result = architectures.compare(architecture, name)
    assert result.verdict == verdict and re.search(why, result.why)


def test_the_sweep_notices_what_is_wrong(monkeypatch):
    real = architectures._compressed
    monkeypatch.setattr(architectures, "_compressed", lambda *given: real(*given).roll(1, dims=-1))
    result = architectures.compare("llama", "LlamaForCausalLM")
    assert result.verdict == "wrong"
    assert "## Wrong" in architectures.page([result])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_no_architecture_of_transformers_is_silently_wrong():
    results = [architectures.compare(*each) for each in architectures.known()]
    assert not [one for one in results if one.verdict == "wrong"]
    assert sum(one.verdict == "same" for one in results) > 140
    assert sum(one.verdict == "not built" for one in results) <= 15
