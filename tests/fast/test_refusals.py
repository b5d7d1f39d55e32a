"""What cannot work is refused before the model changes, and the error says what to do."""

import copy

import pytest
import torch
from models import prompts, tiny, written

from kvlab.fast import compress
from kvlab.reference import methods

BUDGET = 12


def checkpointing():
    model = copy.deepcopy(tiny("llama")).train()
    model.gradient_checkpointing_enable()
    return model


def sliding():
    config = copy.deepcopy(tiny("mistral").config)
    config.sliding_window = 8
    return type(tiny("mistral"))(config)


def split():
    model = copy.deepcopy(tiny("llama"))
    model._tp_size = 2  # as transformers notes tensor parallelism
    return model


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`")
@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: tiny("llama").model, "LlamaModel has no head.*AutoModelForCausalLM"),
        (lambda: torch.compile(tiny("llama")), "the model that torch.compile\\(\\) was given"),
        (checkpointing, "gradient checkpointing.*call model.eval\\(\\)"),
        (sliding, "no full-attention layer"),
        (split, "LlamaForCausalLM are in several processes.*device_map"),
        (object, "transformers model"),
    ],
)
def test_a_model_that_is_not_the_right_one_is_refused_with_the_right_one(made, message):
    with pytest.raises(ValueError, match=message), compress(made(), "h2o", BUDGET):
        pass


@pytest.mark.parametrize(
    ("error", "arguments", "message"),
    [
        (TypeError, {"policy": 5}, "policy = 5 must be"),
        (TypeError, {"policy": "h2o", "budget": 9, "watch": 3}, "watch = 3 must be"),
        (TypeError, {"policy": "h2o", "budget": 9.5}, "budget"),
        (TypeError, {"policy": "h2o", "budget": 9, "block_size": 2.5}, "block_size = 2.5 must be"),
        (TypeError, {"policy": "h2o", "budget": 9, "block_size": "4"}, "block_size = '4' must be"),
        (ValueError, {"policy": "h2o"}, "h2o needs a budget"),
        (ValueError, {"policy": "h2o", "budget": 0}, "budget = 0"),
        (ValueError, {"policy": "h2o", "budget": 8, "block_size": 0}, "block_size = 0"),
        (ValueError, {"policy": "nonsense", "budget": 8}, "unknown method"),
        (ValueError, {"policy": "caote:rkv", "budget": 12}, "at least 0"),
        (ValueError, {"policy": methods.get("h2o", 8), "budget": 8}, "finished policy"),
    ],
)
def test_arguments_are_refused_before_the_model_changes(error, arguments, message):
    model = tiny("llama")
    with pytest.raises(error, match=message), compress(model, **arguments):
        pass
    assert model.config._attn_implementation != "kvlab"
    assert "forward" not in model.__dict__


def generating(lengths=(12,), **options):
    return lambda model, cache: model.generate(
        **{**prompts(lengths), **options}, past_key_values=cache, max_new_tokens=4
    )


def calling(**options):
    return lambda model, cache: model(**{**prompts([12]), "past_key_values": cache, **options})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (calling(past_key_values=None), "past_key_values=cache"),
        (
            lambda model, cache: model.generate(**prompts([12]), max_new_tokens=4),
            "past_key_values=cache",
        ),
        (lambda model, cache: model.model(**prompts([12]), past_key_values=cache), "model itself"),
        (generating(guidance_scale=1.5), "without options .*guidance_scale"),
        (generating(prompt_lookup_num_tokens=2), "assisted decoding"),
        (generating(prefill_chunk_size=5), "block_size=.* instead of prefill_chunk_size"),
        (generating((21, 13), prefill_chunk_size=5), "block_size=.* instead of prefill_chunk_size"),
        (generating(use_cache=False), "use_cache = False"),
        (generating(attention_mask=torch.zeros(1, 12, dtype=torch.long)), "at least one token"),
        (generating(attention_mask=torch.tensor([[1] * 11 + [0]])), "pad on the left"),
        (generating(cache_implementation="static"), "cache_implementation"),
        (calling(input_ids=torch.zeros((1, 0), dtype=torch.long)), "must hold at least one token"),
        (calling(attention_mask=torch.ones(1, 1, 12, 12)), "attention_mask must be"),
        (calling(output_attentions=True), "output_attentions"),
    ],
)
def test_what_cannot_work_is_refused(call, message):
    model = tiny("llama")
    with compress(model, "h2o", BUDGET) as cache, pytest.raises(ValueError, match=message):
        call(model, cache)
    assert model.config._attn_implementation != "kvlab"


def test_one_model_is_compressed_once():
    model = tiny("llama")
    with (
        compress(model, "h2o", BUDGET),
        pytest.raises(ValueError, match="compressed already"),
        compress(model, "h2o", BUDGET),
    ):
        pass
    assert model.config._attn_implementation != "kvlab"


def test_a_prompt_that_the_budget_cannot_hold_changes_nothing():
    model = tiny("llama")
    with compress(model, "raas", BUDGET) as cache:
        with pytest.raises(ValueError, match="protected"):
            model(**prompts([20]), past_key_values=cache)
        assert cache.get_seq_length() == 0
        model(**prompts([8]), past_key_values=cache)
        assert cache.get_seq_length() == 8


def test_another_text_in_a_cache_that_holds_one_is_told_to_reset():
    model = tiny("llama")
    message = r"holds a text of 24 tokens; call reset\(\)"
    with compress(model, "h2o", BUDGET) as cache:
        written(model, cache, prompts([21]), 4)
        with pytest.raises(ValueError, match=message):
            written(model, cache, prompts([12]), 4)
        with pytest.raises(ValueError, match=message):
            model(**prompts([12]), past_key_values=cache)


def test_a_cache_is_closed_by_hand_where_there_is_no_context():
    model, inputs = tiny("llama"), prompts([12])
    cache = compress(model, "h2o", BUDGET)
    model(**inputs, past_key_values=cache)
    cache.close()
    cache.close()
    assert model.config._attn_implementation != "kvlab"
    assert cache.kept()[0] == (BUDGET,)
    with pytest.raises(ValueError, match="has ended: call compress"):
        model(**inputs, past_key_values=cache)


def test_a_context_that_ends_while_a_thread_generates_says_so():
    model = tiny("llama")

    class Close:
        """Between two steps, ends the context, as another thread would."""

        def put(self, value):
            cache.close()

        def end(self):
            pass

    with (
        compress(model, "h2o", BUDGET) as cache,
        pytest.raises(ValueError, match="wait for the thread"),
    ):
        model.generate(**prompts([21]), past_key_values=cache, max_new_tokens=4, streamer=Close())
