"""Trained models that write alone: the reference and PyTorch write and keep the same."""

from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from kvlab.fast import compress
from kvlab.fast.models import fetched_directory, is_fetched
from kvlab.reference import Transformer
from kvlab.reference.generate import generate
from kvlab.reference.tasks import needle
from kvlab.reference.transformer import load_tokenizer
from support.models import written


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


speaks = pytest.mark.skipif(
    not is_fetched("smollm2"), reason="smollm2 is not on this machine: kvlab models get smollm2"
)


def haystack(words, seed=0):
    problem = needle.haystacks(1, seed=seed, words=words, needles=1)[0]
    return load_tokenizer(fetched_directory("smollm2")).encode(problem.prompt).ids
