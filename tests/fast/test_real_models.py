"""Trained models, running freely: the same text and the same keep sets, token by token."""

import copy
from functools import cache
from importlib.util import find_spec

import pytest
import torch

from kvlab.fast import compress
from kvlab.fast.models import fetched_directory
from kvlab.reference import methods
from kvlab.reference.models import reasoner_directory
from kvlab.reference.tasks import reasoning
from kvlab.reference.transformer import load_tokenizer
from support.models import written
from support.sampling import sampled
from support.trained import assert_alike, assert_same, fast_model, fast_run, haystack, speaks

SPECS = {
    "full": None,
    "streaming_llm": 100,
    "h2o": 100,
    "random@recent=8": 100,
    "h2o@recent=16,page=16,kv_heads=union": 100,
    "lazy_eviction@window=16,threshold=0.01,page=8,kv_heads=layer": 100,
    "full@precision=fp8": None,
    "h2o@page=16,precision=nvfp4": 100,
    "caote:h2o@precision=turboquant_prod": 100,
    "tova": 100,
    "tova@pin_prompt=true": 120,
    "snapkv@window=16,schedule=every_block": 100,
    "raas@pin_prompt=false,threshold=0.01": 100,
    "rkv@every=16": 100,
    "nacl": 100,
    "rpc@interval=32,selector=8": None,
    "kivi@residual=32,group=8": None,
    "ddks@interval=32,selector=8,group=8": None,
    "lazy_eviction@window=16,threshold=0.01": 100,
    "caote:h2o": 100,
    "fast_caote:tova": 100,
    "desirekv@interval=32,selector=8,group=8": None,
    "ahakv@recent=16": 100,
}


@pytest.mark.parametrize("spec", sampled(SPECS, ["caote:h2o"]))
def test_the_reasoner_solves_whole_problems_alike(spec):
    tokenizer = load_tokenizer(reasoner_directory())
    problem = reasoning.held_out(1, seed=3)[0]
    prompt, solution = (tokenizer.encode(t).ids for t in (problem.prompt, problem.solution))
    assert_alike(reasoner_directory(), methods.get(spec, SPECS[spec]), prompt, len(solution))


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
@speaks
def test_a_model_that_speaks_writes_alike(spec):
    prompt = haystack(words=60)
    assert 105 < len(prompt) < 250  # more than the budgets
    budget = len(prompt) + 8 if "pin_prompt=true" in spec else SPECS[spec]
    assert_alike(fetched_directory("smollm2"), methods.get(spec, budget), prompt, 16)


# --- layers on several devices -------------------------------------------------------------------

needs_accelerate = pytest.mark.skipif(not find_spec("accelerate"), reason="needs accelerate")


@cache
def problem() -> list[int]:
    return load_tokenizer(reasoner_directory()).encode(reasoning.held_out(1)[0].prompt).ids


@needs_accelerate
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("spec", SPECS)
def test_caches_are_where_their_layers_are(spec):
    """Half of the layers on a GPU, half really on the CPU."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    policy = methods.get(spec, SPECS[spec])
    model = copy.deepcopy(fast_model(reasoner_directory()))
    for layer in model.model.layers[:2]:
        layer.to("cuda")
        hook = AlignDevicesHook(execution_device="cuda", io_same_device=True)
        add_hook_to_module(layer, hook)
    expected = fast_run(fast_model(reasoner_directory()), policy, problem(), 5)
    assert_same(fast_run(model, policy, problem(), 5), expected)
    with compress(model, "full") as cache:
        written(model, cache, {"input_ids": torch.tensor([problem()])}, 5)
        devices = [each.positions.device.type for each in cache.text.layers.caches]
    assert devices == ["cuda", "cuda", "cpu", "cpu"]
