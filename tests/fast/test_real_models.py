"""Trained models, running freely: the same text and the same keep sets, token by token."""

import copy
from functools import cache

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module

from kvlab.fast import compress
from kvlab.fast.models import fetched_directory
from kvlab.reference import methods
from kvlab.reference.models import reasoner_directory
from kvlab.reference.tasks import reasoning
from kvlab.reference.transformer import load_tokenizer
from support.models import written
from support.sampling import sampled
from support.trained import assert_alike, assert_same, fast_model, fast_run, haystack, speaks

SPECS = (
    *("full", "streaming_llm", "h2o", "tova", "nacl", "caote:h2o", "fast_caote:tova"),
    *("random@recent=8", "ahakv@recent=16", "rkv@every=16", "tova@pin_prompt=true"),
    *("full@precision=fp8", "h2o@page=16,precision=nvfp4", "h2o@recent=16,page=16,kv_heads=union"),
    *("caote:h2o@precision=turboquant_prod", "snapkv@window=16,schedule=every_block"),
    *("lazy_eviction@window=16,threshold=0.01", "raas@pin_prompt=false,threshold=0.01"),
    *("lazy_eviction@window=16,threshold=0.01,page=8,kv_heads=layer", "kivi@residual=32,group=8"),
    *("rpc@interval=32,selector=8", "ddks@interval=32,selector=8,group=8"),
    "desirekv@interval=32,selector=8,group=8",
)


def policy_of(spec, pinned=120):
    """Return a policy of 100 entries, or of more where the prompt stays."""
    budget = pinned if "pin_prompt=true" in spec else 100
    return methods.get(spec, budget if methods.takes_budget(spec) else None)


@pytest.mark.parametrize("spec", sampled(SPECS, ["caote:h2o"]))
def test_the_reasoner_solves_whole_problems_alike(spec):
    tokenizer = load_tokenizer(reasoner_directory())
    problem = reasoning.held_out(1, seed=3)[0]
    prompt, solution = (tokenizer.encode(t).ids for t in (problem.prompt, problem.solution))
    assert_alike(reasoner_directory(), policy_of(spec), prompt, len(solution))


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
@speaks
def test_a_model_that_speaks_writes_alike(spec):
    prompt = haystack(words=60)
    assert 105 < len(prompt) < 250  # more than the budgets
    assert_alike(fetched_directory("smollm2"), policy_of(spec, len(prompt) + 8), prompt, 16)


# --- layers on several devices -------------------------------------------------------------------


@cache
def problem() -> list[int]:
    return load_tokenizer(reasoner_directory()).encode(reasoning.held_out(1)[0].prompt).ids


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("spec", SPECS)
def test_caches_are_where_their_layers_are(spec):
    """Half of the layers on a GPU, half really on the CPU."""
    policy = policy_of(spec)
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
