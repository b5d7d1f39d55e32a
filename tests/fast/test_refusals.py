"""What cannot work is refused before the model changes, and the error says what to do."""

import copy
from threading import Thread

import pytest
import torch
from transformers import DynamicCache, GPT2Config  # noqa: F401  (the table names caches, too)

from kvlab.fast import compress
from kvlab.reference import methods  # noqa: F401  (which the table names)
from support.models import Between, built, prompts, tiny, written
from support.refused import refused

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


def attending_across():
    config = GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=97, add_cross_attention=True)
    return built(config, torch.float32)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`")
@refused(__file__, "models")
def test_a_model_that_is_not_the_right_one_is_refused_with_the_right_one(bad, message):
    with pytest.raises(ValueError, match=message), compress(eval(bad), "h2o", BUDGET):
        pass


@pytest.mark.parametrize("part", ["the model", "a layer"])
def test_checkpointing_that_begins_inside_is_refused_by_its_name(part):
    model, inputs = copy.deepcopy(tiny("llama")), prompts([9])
    with compress(model, "full") as cache:
        model.gradient_checkpointing_enable()
        model.train()
        with pytest.raises(ValueError, match=r"trains with gradient checkpointing.*model\.eval"):
            model(**inputs, past_key_values=cache)
        model.eval()
        model(**inputs, past_key_values=cache)  # nothing was broken
    if part == "a layer":
        model.model.layers[1].train()
        with pytest.raises(ValueError, match="gradient checkpointing"), compress(model, "full"):
            pass


@pytest.mark.parametrize("training", [False, True])
def test_a_loss_says_that_there_are_no_gradients(training):
    model, inputs = copy.deepcopy(tiny("llama")).train(training), prompts([9])
    with compress(model, "full") as cache:
        found = model(**inputs, labels=inputs["input_ids"], past_key_values=cache)
        with pytest.raises(
            RuntimeError, match=r"compress\(\) the model computes without gradients"
        ):
            found.loss.backward()
        cache.reset()
        with torch.no_grad():
            found = model(**inputs, labels=inputs["input_ids"], past_key_values=cache)
    assert not found.loss.requires_grad and all(x.grad is None for x in model.parameters())


@pytest.mark.filterwarnings("ignore")
def test_a_step_is_not_compiled_as_one_graph():
    model, inputs = copy.deepcopy(tiny("llama")), prompts([9])
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with (
        compress(model, "full") as cache,
        pytest.raises(RuntimeError, match=r"cannot be compiled as one graph \(fullgraph = True\)"),
    ):
        compiled(**inputs, past_key_values=cache)


def assert_refused(kind, arguments, message):
    model = tiny("llama")
    with pytest.raises(kind, match=message):
        eval(f"compress(model, {arguments})")
    assert model.config._attn_implementation != "kvlab"
    assert "forward" not in model.__dict__


@refused(__file__, "types")
def test_wrong_types_are_refused_before_the_model_changes(bad, message):
    assert_refused(TypeError, bad, message)


@refused(__file__)
def test_arguments_are_refused_before_the_model_changes(bad, message):
    assert_refused(ValueError, bad, message)


@refused(__file__, "calls")
def test_what_cannot_work_is_refused(bad, message):
    model = tiny("llama")
    with compress(model, "h2o", BUDGET) as cache:
        given = {**prompts([12]), "past_key_values": cache}  # which the table names
        with pytest.raises(ValueError, match=message):
            eval(bad, globals() | {"model": model, "given": given})
    assert model.config._attn_implementation != "kvlab"


def test_one_model_is_compressed_once():
    model = tiny("llama")
    with compress(model, "h2o", BUDGET), pytest.raises(ValueError, match="compressed already"):
        compress(model, "h2o", BUDGET)
    assert model.config._attn_implementation != "kvlab"


def test_a_prompt_that_the_budget_cannot_hold_changes_nothing():
    model = tiny("llama")
    with compress(model, "raas", BUDGET) as cache:
        with pytest.raises(ValueError, match="protected"):
            model(**prompts([20]), past_key_values=cache)
        assert cache.get_seq_length() == 0
        model(**prompts([8]), past_key_values=cache)
        assert cache.get_seq_length() == 8


def test_a_share_that_is_too_small_is_named_with_what_it_is():
    message = (
        "budget = 1% of 90 tokens, which is 1: budget = 1 must be at least the 12 entries that are "
        "protected"
    )
    with compress(tiny("llama"), "ahakv@recent=12", "1%") as cache:
        with pytest.raises(ValueError, match=f"^{message}$"):
            tiny("llama")(**prompts([90]), past_key_values=cache)
        assert cache.get_seq_length() == 0


def another(length: int, seed: int = 7, **more):
    return {**prompts([length], seed=seed), **more}


WIDE = torch.ones(1, 34, dtype=torch.long)


@refused(__file__, "texts")
def test_a_text_that_does_not_continue_the_one_in_the_cache_is_refused(bad, message):
    model, given = tiny("llama"), eval(bad)
    with compress(model, "h2o", BUDGET) as cache:
        written(model, cache, prompts([21]), 4)
        tail = r".*holds a text of 24 tokens; call reset\(\) .* attention_mask of 24 columns more"
        with pytest.raises(ValueError, match=message + tail):
            model.generate(**given, past_key_values=cache, max_new_tokens=4)
        if given.get("attention_mask") is not None:
            with pytest.raises(ValueError, match=f"must be a tensor of shape{tail}"):
                model(**another(12), past_key_values=cache)
        new = another(10, attention_mask=WIDE)
        assert model.generate(**new, past_key_values=cache, max_new_tokens=4).shape == (1, 14)


def test_a_cache_belongs_to_one_context_and_one_batch():
    model, other = tiny("llama"), compress(tiny("qwen2"), "h2o", BUDGET)
    with other, compress(model, "h2o", BUDGET) as cache:
        with pytest.raises(ValueError, match="cache of another compress"):
            model(**prompts([12]), past_key_values=other)
        model(**prompts([12]), past_key_values=cache)
        new = {"input_ids": prompts([4])["input_ids"], "attention_mask": torch.ones(1, 16)}
        with pytest.raises(ValueError, match="batch_repeat_interleave"):
            model.generate(**new, past_key_values=cache, num_beams=3, max_new_tokens=4)
        cache.batch_repeat_interleave(3)
        model.generate(**new, past_key_values=cache, num_beams=3, max_new_tokens=4)


def test_a_cache_in_use_by_another_thread_is_refused():
    model, found = tiny("llama"), []

    def elsewhere():
        for use in (lambda: model(**prompts([4]), past_key_values=cache), cache.copy):
            thread = Thread(target=lambda use=use: found.append(refusal_of(use)))
            thread.start()
            thread.join()

    def refusal_of(use):
        with pytest.raises(ValueError, match=r"in use by another thread: .* cache.copy\(\)"):
            use()
        return True

    with compress(model, "h2o", BUDGET) as cache:
        inputs, between = prompts([21]), Between(elsewhere)
        model.generate(**inputs, past_key_values=cache, max_new_tokens=4, streamer=between)
    assert found == [True] * 10


def test_a_share_is_of_the_first_call_and_rounded_up():
    model = tiny("llama")
    with compress(model, "h2o", "30%", block_size=6) as cache:
        for lengths, entries in (([21, 13], 7), ([40, 40], 12)):
            written(model, cache, prompts(lengths), 10)
            assert cache.kept()[0] == (entries, entries)
            cache.reset()


def test_a_cache_is_closed_by_hand_where_there_is_no_context():
    model, inputs = tiny("llama"), prompts([12])
    cache = compress(model, "h2o", BUDGET)
    model(**inputs, past_key_values=cache)
    copy = cache.copy()
    copy.close()
    cache.close()
    assert model.config._attn_implementation != "kvlab"
    assert not {"forward", "generate", "generate_batch"} & model.__dict__.keys()
    assert cache.kept()[0] == (BUDGET,)
    for closed in (cache, copy):
        with pytest.raises(ValueError, match="has ended: call compress"):
            model(**inputs, past_key_values=closed)


def test_a_context_that_ends_while_a_thread_generates_says_so():
    model = tiny("llama")
    cache = compress(model, "h2o", BUDGET)
    close = Between(cache.close)
    with pytest.raises(ValueError, match="wait for the thread"):
        model.generate(**prompts([21]), past_key_values=cache, max_new_tokens=4, streamer=close)
