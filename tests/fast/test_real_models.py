"""Trained models, running freely: the same text and the same keep sets, token by token."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from models import written
from sampling import sampled
from transformers import AutoModelForCausalLM

from kvlab.fast import compress
from kvlab.fast.models import fetched_directory, is_fetched
from kvlab.reference import Transformer, generate, methods
from kvlab.reference.files import load_tokenizer
from kvlab.reference.models import reasoner_directory
from kvlab.reference.tasks import needle, reasoning

STORIES = Path(__file__).parents[2].parent / "shared" / "models" / "stories260K"
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


def fast_run(directory, policy, prompt, tokens):
    kept: list[tuple[int, np.ndarray]] = []

    def watch(block, result):
        kept.append((block.layer, result.cache.positions[0].sort(dim=-1).values.numpy()))

    model = fast_model(directory)
    with compress(model, policy, watch=watch) as cache:
        ids = torch.tensor([prompt])
        result = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=cache,
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return result[0, len(prompt) :].tolist(), kept


def assert_alike(directory, policy, prompt, tokens):
    expected, reference = reference_run(directory, policy, prompt, tokens)
    found, fast = fast_run(directory, policy, prompt, tokens)
    assert found == expected
    assert len(fast) == len(reference) > tokens
    for (layer, ours), (same, theirs) in zip(fast, reference, strict=True):
        assert layer == same
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("spec", sampled(SPECS, list(SPECS)[2::4]))
def test_the_reasoner_solves_whole_problems_alike(spec):
    tokenizer = load_tokenizer(reasoner_directory())
    problem = reasoning.held_out(1, seed=3)[0]
    prompt, solution = (tokenizer.encode(t).ids for t in (problem.prompt, problem.solution))
    assert_alike(reasoner_directory(), methods.get(spec, SPECS[spec]), prompt, len(solution))


@pytest.mark.parametrize("spec", sampled(SPECS, list(SPECS)[1::4]))
@pytest.mark.skipif(not STORIES.is_dir(), reason=f"{STORIES} is not on this machine")
def test_a_published_model_writes_alike(spec):
    prompt = [1, *np.random.default_rng(0).integers(3, 500, 110).tolist()]
    assert_alike(STORIES, methods.get(spec, SPECS[spec]), prompt, 90)


speaks = pytest.mark.skipif(
    not is_fetched("smollm2"), reason="smollm2 is not on this machine: kvlab models get smollm2"
)


def haystack(words, seed=0):
    """Return the tokens of a text with a needle."""
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


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
@speaks
def test_a_padded_batch_of_a_model_that_speaks_writes_what_each_text_alone_does(spec):
    texts, tokens = [haystack(words=90), haystack(words=60)], 12
    longest, shortest = (size(len(text) for text in texts) for size in (max, min))
    assert 105 < shortest < longest
    budget = longest + 8 if "pin_prompt=true" in spec else SPECS[spec]
    policy, model = methods.get(spec, budget), fast_model(fetched_directory("smollm2"))
    padded = [[0] * (longest - len(text)) + text for text in texts]
    mask = [[0] * (longest - len(text)) + [1] * len(text) for text in texts]
    together = {"input_ids": torch.tensor(padded), "attention_mask": torch.tensor(mask)}
    with compress(model, policy) as cache:
        found, _ = written(model, cache, together, tokens)
        kept = cache.positions()
    for number, text in enumerate(texts):
        ids = torch.tensor([text])
        alone = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with compress(model, policy) as cache:
            expected, _ = written(model, cache, alone, tokens)
            assert found[number].tolist() == expected[0].tolist()
            for layer, (ours, its) in enumerate(zip(kept, cache.positions(), strict=True)):
                for head in range(its.shape[1]):
                    mine = ours[number, head]
                    assert mine[mine >= 0].tolist() == its[0, head].tolist(), (layer, head)
