"""How many of our own functions a token calls: what all layers share is computed once."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import kvlab.fast
import kvlab.reference
from kvlab.fast import compress
from kvlab.fast.kernels import attention, caote

OURS = [str(Path(module.__file__).parent) for module in (kvlab.fast, kvlab.reference)]
MOST = {"full": 220, "h2o": 220, "tova": 220, "caote:h2o": 220}
"""Calls of a token in a model of four layers."""
FRAMES = {"full": 6, "h2o": 6, "tova": 6, "caote:h2o": 7}
"""Own frames above the attention product, or above CAOTE's distances."""
INNERMOST = {attention.logits, attention.attend_without_weights, caote.errors_per_row}


def walked(spec):
    """Return how many calls of ours a token makes, and the most frames above the innermost."""
    small = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 32, "num_hidden_layers": 4}
    model = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **small))
    calls, stack, deepest = 0, [], 0
    codes = {each.__code__ for each in INNERMOST}

    def note(frame, event, _):
        nonlocal calls, deepest
        if not frame.f_code.co_filename.startswith(tuple(OURS)):
            return
        if event == "call":
            calls += 1
            deepest = max(deepest, len(stack)) if frame.f_code in codes else deepest
            stack.append(frame)
        elif event == "return":
            stack.pop()

    token = torch.tensor([[1]])
    with compress(model.eval(), spec, None if spec == "full" else 12) as cache, torch.no_grad():
        model(torch.arange(20)[None], past_key_values=cache)
        for _ in range(8):
            model(token, past_key_values=cache)
        sys.setprofile(note)
        try:
            model(token, past_key_values=cache)
        finally:
            sys.setprofile(None)
    return calls, deepest


@pytest.mark.parametrize("spec", MOST)
def test_a_token_calls_few_functions(spec):
    calls, frames = walked(spec)
    assert (calls <= MOST[spec], frames <= FRAMES[spec]) == (True, True), (calls, frames)
