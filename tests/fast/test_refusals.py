"""Errors of `compress` say what to do."""

import copy
import threading

import pytest
import torch
from models import prompts, tiny, written

from kvlab.fast import compress

BUDGET = 12


def training_with_checkpoints(model):
    model = copy.deepcopy(model).train()
    model.gradient_checkpointing_enable()
    return model


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`")
@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda model: model.model, "LlamaModel has no head.*AutoModelForCausalLM"),
        (torch.compile, "the model that torch.compile\\(\\) was given"),
        (training_with_checkpoints, "gradient checkpointing.*call model.eval\\(\\)"),
    ],
    ids=["no head", "compiled", "checkpointing"],
)
def test_a_model_that_is_not_the_right_one_is_refused_with_the_right_one(made, message):
    model = made(tiny("llama"))
    with pytest.raises(ValueError, match=message), compress(model, "h2o", BUDGET):
        pass


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([21], {"guidance_scale": 1.5}, "without options .*guidance_scale"),
        ([21], {"prefill_chunk_size": 5}, "block_size=.* instead of prefill_chunk_size"),
        ([21, 13], {"prefill_chunk_size": 5}, "block_size=.* instead of prefill_chunk_size"),
    ],
)
def test_options_of_generate_that_cannot_work_are_named(lengths, options, message):
    model = tiny("llama")
    with compress(model, "h2o", BUDGET) as cache, pytest.raises(ValueError, match=message):
        model.generate(**prompts(lengths), past_key_values=cache, max_new_tokens=4, **options)


def test_another_text_in_a_cache_that_holds_one_is_told_to_reset():
    model = tiny("llama")
    message = r"holds a text of 24 tokens; call reset\(\)"
    with compress(model, "h2o", BUDGET) as cache:
        written(model, cache, prompts([21]), 4)
        with pytest.raises(ValueError, match=message):
            written(model, cache, prompts([12]), 4)
        with pytest.raises(ValueError, match=message):
            model(**prompts([12]), past_key_values=cache)


def test_a_context_that_ends_while_a_thread_generates_says_so():
    model, begun, ended, errors = tiny("llama"), threading.Event(), threading.Event(), []

    class Wait:
        """Between two steps, waits for the context to end."""

        def put(self, value):
            begun.set()
            ended.wait(60)

        def end(self):
            pass

    def generate():
        try:
            model.generate(
                **prompts([21]), past_key_values=cache, max_new_tokens=4, streamer=Wait()
            )
        except ValueError as error:
            errors.append(str(error))

    with compress(model, "h2o", BUDGET) as cache:
        thread = threading.Thread(target=generate)
        thread.start()
        assert begun.wait(60)
    ended.set()
    thread.join(60)
    assert len(errors) == 1 and "wait for the thread" in errors[0]
