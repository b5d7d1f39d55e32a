"""With ``reposition`` a token reads the kept ones as if they were all of the text, or says why not.

A model with one layer is the oracle: what it computes from the kept tokens alone is what they are
worth to a later token. In deeper models, kept tokens know evicted ones that they once read.
"""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import cpu_offload

from kvlab.fast import compress
from kvlab.fast.engine import step
from kvlab.fast.engine.observation import LayerView, reposition
from kvlab.fast.huggingface import agreement, repositioning
from support.architectures import close, eager, model_of, qwen_with_vision
from support.models import prompts, tiny
from support.tables import cases

METHOD, BUDGET = "streaming_llm@sinks=2,reposition=true", 8


@torch.no_grad()
def after_an_eviction(model, method: str):
    """Return a token's logits after an eviction, and the stock model's on the kept tokens."""
    text, new = prompts([20])["input_ids"], torch.tensor([[7]])
    with compress(model, method, BUDGET) as cache:
        model(input_ids=text, past_key_values=cache)
        kept = cache.positions()[0][0, 0]
        found = model(input_ids=new, past_key_values=cache).logits[:, -1]
    assert kept.tolist() == [0, 1, *range(14, 20)]
    return found, eager(model, input_ids=torch.cat([text[:, kept], new], dim=1))[:, -1]


@cases(
    __file__,
    "a_layer_reads_kept_tokens_as_if_they_were_the_text",
    "module config options rotates",
)
def test_a_layer_reads_kept_tokens_as_if_they_were_the_text(module, config, options, rotates):
    model = model_of(module, config, **options)
    close(*after_an_eviction(model, METHOD))
    found, expected = after_an_eviction(model, "streaming_llm@sinks=2")
    assert ((found - expected).abs().max() > 0.01 * expected.std()) == rotates


@cases(__file__, "a_layer_that_does_something_else_is_refused", "module config options why")
@pytest.mark.parametrize("verify", [True, False])
def test_a_layer_that_does_something_else_is_refused(module, config, options, why, verify):
    model = model_of(module, config, **options)
    with pytest.raises(ValueError, match=f"reposition = True cannot be used with .*{why}"):
        compress(model, METHOD, BUDGET, verify=verify)
    compress(model, "streaming_llm@sinks=2", BUDGET, verify=verify).close()


@pytest.mark.parametrize("spec", ["expected_attention", "triattention"])
def test_a_method_that_reads_the_rotary_embedding_refuses_a_model_without_one(spec):
    with pytest.raises(ValueError, match=f"^{spec} cannot be used with GPT2LMHeadModel: what"):
        compress(model_of("gpt2", "GPT2Config"), spec, BUDGET)


def test_every_layer_is_asked_for_itself():
    model = model_of("smollm3", "SmolLM3Config", num_hidden_layers=4, no_rope_layers=[1, 0, 1, 0])
    with compress(model, METHOD, BUDGET) as cache:
        vectors, by = torch.ones(1, 16), torch.tensor([3])
        moved = [
            not torch.equal(one(vectors, by), vectors) for one in cache.attachment.rotations or ()
        ]
    assert moved == [True, False, True, False]


def test_vacant_slots_are_no_places():
    """Positions 2, 5 and 9 become 0, 1 and 2; the query of token 10 is the third of three."""
    positions = torch.tensor([[[-1, 9, 2, 5]], [[0, 1, 2, 3]]], dtype=torch.int32)
    cache: Any = SimpleNamespace(dtype=torch.float32)
    read = {"positions": positions, "keys": torch.zeros(2, 1, 4, 1)}
    queries, view = reposition(
        torch.zeros(2, 1, 1, 1, 1),
        LayerView(cache, read=read),
        torch.tensor([[[11]], [[4]]]),
        lambda vectors, by: vectors + by[..., None],
    )
    assert view.keys[0, 0, 1:, 0].tolist() == [-7, -2, -4]
    assert view.keys[1, 0, :, 0].tolist() == [0, 0, 0, 0]
    assert queries.flatten().tolist() == [-8, 0]


# --- what is compared with the stock model ---


@pytest.fixture
def compared(monkeypatch):
    """Let nothing have been compared yet; return the options that are compared."""
    asked, own = [], agreement._after_eviction
    monkeypatch.setattr(agreement, "_differences", {})
    monkeypatch.setattr(
        agreement, "_after_eviction", lambda *given: asked.append(given[1]) or own(*given)
    )
    return asked


def test_a_method_that_changes_positions_or_masks_is_compared_once_and_others_never(compared):
    early = "caote:h2o@evict_before_attend=true"
    for method in ("h2o", METHOD, early, "streaming_llm", METHOD, early):
        with compress(tiny("llama"), method, BUDGET) as cache:
            assert cache.not_compared == ()
    assert compared == [("reposition",), ("evict_before_attend",)]
    with compress(tiny("gemma2", torch.float32), METHOD, BUDGET) as cache:
        assert "after an eviction with reposition" in cache.not_compared[-1]


def test_a_wrong_rotation_is_noticed(compared, monkeypatch):
    model = model_of("smollm3", "SmolLM3Config", num_hidden_layers=4, no_rope_layers=[1, 1, 0, 1])
    own = repositioning.rotations_of
    monkeypatch.setattr(
        "kvlab.fast.huggingface.compression.rotations_of", lambda *given: own(*given)[:1] * 4
    )
    for _ in range(2):
        with pytest.raises(ValueError, match="after an eviction with reposition: they differ"):
            compress(model, METHOD, BUDGET)
    assert len(compared) == 1
    compress(model, "streaming_llm", BUDGET).close()
    compress(model, METHOD, BUDGET, verify=False).close()


def test_a_wrong_mask_is_noticed(compared, monkeypatch):
    own = step.attend_survivors
    monkeypatch.setattr(step, "attend_survivors", lambda *given: own(*given).roll(1, 1))
    with pytest.raises(ValueError, match="after an eviction with evict_before_attend: they differ"):
        compress(tiny("llama"), "caote:h2o@evict_before_attend=true", BUDGET)
    compress(tiny("llama"), "caote:h2o", BUDGET).close()


def test_offloaded_layers_are_asked_and_compared_where_they_compute(compared):
    model = copy.deepcopy(tiny("llama", torch.float32))
    cpu_offload(model, execution_device="cpu")
    assert model.device.type == "meta"
    with compress(model, METHOD, BUDGET) as cache:
        assert cache.not_compared == ()
    assert compared == [("reposition",)]


# --- positions that the caller gives ---


@cases(__file__, "positions_that_do_not_count_tokens_are_refused", "positions")
def test_positions_that_do_not_count_tokens_are_refused(positions):
    model, ids = tiny("llama"), prompts([6])["input_ids"]
    given, counted = torch.tensor([positions]), torch.arange(6)[None]
    with compress(model, METHOD, BUDGET) as cache, torch.no_grad():
        with pytest.raises(ValueError, match=r"position_ids must count.*reposition"):
            model(input_ids=ids, position_ids=given, past_key_values=cache)
        assert cache.clocks == ()
        first = model(input_ids=ids, position_ids=counted, past_key_values=cache).logits
        with pytest.raises(ValueError, match=r"position_ids must count.*reposition"):
            model(input_ids=ids[:, :1], position_ids=given[:, 5:] + 3, past_key_values=cache)
        last = model(
            input_ids=ids[:, :1], position_ids=counted[:, 5:] + 1, past_key_values=cache
        ).logits
    with compress(model, METHOD, BUDGET) as cache, torch.no_grad():
        assert torch.equal(model(input_ids=ids, past_key_values=cache).logits, first)
        assert torch.equal(model(input_ids=ids[:, :1], past_key_values=cache).logits, last)


def test_an_image_whose_tokens_have_positions_of_their_own_is_refused():
    model, ids = copy.deepcopy(qwen_with_vision()), prompts([12])["input_ids"] % 80 + 3
    with compress(model, METHOD, BUDGET) as cache, torch.no_grad():
        with pytest.raises(ValueError, match="pixel_values cannot be used with reposition"):
            model(input_ids=ids, pixel_values=torch.zeros(4, 96), past_key_values=cache)
        model(input_ids=ids, past_key_values=cache)
