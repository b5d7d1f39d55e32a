"""Trained models, running freely: the same text and the same keep sets, token by token."""

import copy
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from models import written
from sampling import sampled
from transformers import AutoModelForCausalLM

from kvlab.fast import compress
from kvlab.fast.models import fetched_directory, is_fetched
from kvlab.reference import Transformer, methods
from kvlab.reference.generate import generate
from kvlab.reference.models import reasoner_directory
from kvlab.reference.tasks import needle, reasoning
from kvlab.reference.transformer import load_tokenizer

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


@cache
def reference_model(directory):
    return Transformer.from_directory(directory)


@cache
def fast_model(directory):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64).eval()
    model.generation_config.eos_token_id = None
    return model


def reference_run(directory, policy, prompt, tokens):
    kept: list[tuple[int, np.ndarray]] = []

    def watch(block, result):
        kept.append((block.layer, result.cache.positions))

    model = reference_model(directory)
    return list(generate(model, policy, prompt, tokens, watch=watch).tokens), kept


def fast_run(model, policy, prompt, tokens):
    kept: list[tuple[int, np.ndarray]] = []

    def watch(block, result):
        kept.append((block.layer, result.cache.positions[0].sort(dim=-1).values.cpu().numpy()))

    ids = torch.tensor([prompt])
    with compress(model, policy, watch=watch) as cache:
        found, _ = written(
            model, cache, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, tokens
        )
    return found[0].tolist(), kept


def assert_same(found, expected):
    assert found[0] == expected[0]
    for (layer, ours), (same, theirs) in zip(found[1], expected[1], strict=True):
        assert layer == same
        np.testing.assert_array_equal(ours, theirs)


def assert_alike(directory, policy, prompt, tokens):
    expected = reference_run(directory, policy, prompt, tokens)
    assert len(expected[1]) > tokens
    assert_same(fast_run(fast_model(directory), policy, prompt, tokens), expected)


@pytest.mark.parametrize("spec", sampled(SPECS, ["h2o", "full@precision=fp8", "ahakv@recent=16"]))
def test_the_reasoner_solves_whole_problems_alike(spec):
    tokenizer = load_tokenizer(reasoner_directory())
    problem = reasoning.held_out(1, seed=3)[0]
    prompt, solution = (tokenizer.encode(t).ids for t in (problem.prompt, problem.solution))
    assert_alike(reasoner_directory(), methods.get(spec, SPECS[spec]), prompt, len(solution))


speaks = pytest.mark.skipif(
    not is_fetched("smollm2"), reason="smollm2 is not on this machine: kvlab models get smollm2"
)


def haystack(words, seed=0):
    problem = needle.haystacks(1, seed=seed, words=words, needles=1)[0]
    return load_tokenizer(fetched_directory("smollm2")).encode(problem.prompt).ids


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
@pytest.mark.parametrize("spec", ["caote:h2o", "kivi@residual=32,group=8"])
def test_layers_that_are_fetched_from_the_disk_change_nothing(spec, tmp_path):
    """What ``device_map="auto"`` does where memory is full; all that a CPU alone can try."""
    from accelerate import dispatch_model

    policy = methods.get(spec, SPECS[spec])
    expected = fast_run(fast_model(reasoner_directory()), policy, problem(), 5)
    model = copy.deepcopy(fast_model(reasoner_directory()))
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu"}
    places |= {f"model.layers.{n}": ("cpu", "disk")[n % 2] for n in range(4)} | {"lm_head": "cpu"}
    dispatch_model(model, places, main_device="cpu", offload_dir=tmp_path)  # type: ignore[arg-type]
    assert next(model.model.layers[1].parameters()).is_meta
    assert_same(fast_run(model, policy, problem(), 5), expected)


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
