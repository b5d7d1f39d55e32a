"""Scores that read hidden states: the documentation's learned gate, with and without a twin."""

from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig

from kvlab.fast import compress, twin_of
from kvlab.fast.engine.policy import Score
from kvlab.fast.engine.twins import TWINS
from kvlab.fast.huggingface.attention import UnsupportedModelError
from kvlab.reference import methods, prefill, random_stream, record_trace, run_stream
from kvlab.reference.models import reasoner_directory
from kvlab.reference.simulator.replay import check_replay
from kvlab.reference.streams import Source
from kvlab.reference.transformer import Transformer
from support.models import CONFIGS, prompts, tiny
from support.outside import methods_named
from support.replay import Tolerance, follow_with_reference
from support.sampling import sampled
from support.tolerances import FLOAT64
from support.trained import assert_alike

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "learned_gate.py"
BUDGET = 12
WRAPPERS = ("", "caote:")
VALUES = "self_attn.v_proj.weight"


@pytest.fixture(scope="module", autouse=True)
def example():
    with methods_named(EXAMPLE):
        yield


def gate(folder, config, wrapper="", every=1):
    """Return the policy of a random gate for a model; in the first layer all entries are equal.

    Equal tokens have equal hidden states there, and rounding would break their tie.
    """
    G, D = config.num_key_value_heads, config.hidden_size
    draw = np.random.default_rng(3).normal
    layers = range(config.num_hidden_layers)
    weights = {f"layer.{n}": draw(size=(G, D)) / np.sqrt(D) * (n > 0) for n in layers}
    save_file(weights, folder / "gate.safetensors")
    return methods.get(f"{wrapper}learned_gate@weights={folder}/gate.safetensors", BUDGET)


@contextmanager
def twin(policy):
    """Give the gate a twin; of layers that share a cache, each sequence has its layer's matrix."""
    part = type(getattr(policy.score, "inner", policy.score))

    @twin_of(part)
    class Gate(Score):
        def observe(self, state, seen):
            if "gate" not in state.stream:
                matrix = torch.tensor(load_file(self.spec.weights)[f"layer.{seen.layer}"])
                matrix = matrix.to(seen.hidden_states)
                state.stream["gate"] = matrix.expand(len(seen.positions), -1, -1)
            new = torch.sigmoid(state.stream["gate"] @ seen.hidden_states.mT)
            state.entries["gate"].copy_(seen.at_entries(new, state.entries["gate"]))

        def score(self, state, seen, candidates, room):
            return state.entries["gate"]

    try:
        yield
    finally:
        del TWINS[part]


@pytest.mark.parametrize(
    ("family", "wrapper"),
    sampled(product(CONFIGS, WRAPPERS), [("llama", ""), ("gemma3", "caote:"), ("phi3", "")]),
)
def test_both_sides_keep_the_same_entries(family, wrapper, tmp_path):
    """Padded, in blocks of a prompt, in single layers and in layers that share a cache."""
    policy = gate(tmp_path, CONFIGS[family], wrapper)
    follow_with_reference(tiny(family), policy, Tolerance(FLOAT64, FLOAT64))
    with twin(policy):
        assert follow_with_reference(tiny(family), policy, Tolerance(FLOAT64, FLOAT64))


@pytest.mark.parametrize("family", sampled(("the embedded model", "qwen2", "qwen3"), ("qwen2",)))
def test_both_sides_read_the_same_hidden_states(family, tmp_path):
    """Each side by its own model, running freely."""
    directory, prompt = reasoner_directory(), prompts([40])["input_ids"][0].tolist()
    if family in CONFIGS:
        directory = tmp_path / "model"
        tiny(family).save_pretrained(directory)
    policy = gate(tmp_path, AutoConfig.from_pretrained(directory))
    assert_alike(directory, policy, prompt, 30)
    with twin(policy):
        assert_alike(directory, policy, prompt, 30)


def test_they_are_what_is_projected_and_given_to_scores_that_ask_alone(tmp_path):
    model, seen = Transformer.from_directory(reasoner_directory()), {}

    def watch(block, result):
        seen[block.layer] = result.seen

    for policy in (gate(tmp_path, AutoConfig.from_pretrained(reasoner_directory())), "h2o"):
        chosen = methods.get(policy, BUDGET) if policy == "h2o" else policy
        prefill(model, chosen, [1, 2, 3, 4], watch=watch)
        for layer, each in seen.items():
            if policy == "h2o":
                assert each.hidden_states is None
            else:
                rows = each.hidden_states @ model.weights[f"model.layers.{layer}.{VALUES}"].T
                heads = rows.reshape(4, len(each.values), -1).swapaxes(0, 1)
                np.testing.assert_allclose(heads, each.values, rtol=0, atol=FLOAT64)


def test_models_are_watched_while_a_score_asks_and_refused_where_they_cannot_be(tmp_path):
    model, ids = tiny("llama"), prompts([9])["input_ids"]
    policy = gate(tmp_path, CONFIGS["llama"])
    attention = model.model.layers[1].self_attn

    def watched():
        return sum(len(module._forward_pre_hooks) for module in model.modules())

    with compress(model, "h2o", BUDGET):
        assert watched() == 0
    with compress(model, policy) as cache:
        assert watched() == len(model.model.layers)
        refused = pytest.raises(UnsupportedModelError, match=r"learned_gate.*LlamaAttention is not")
        attention._forward_pre_hooks.clear()
        with refused:
            model(ids, past_key_values=cache)
    assert watched() == 0


def test_traces_and_streams_are_refused(tmp_path):
    model = Transformer.from_directory(reasoner_directory())
    policy = gate(tmp_path, AutoConfig.from_pretrained(reasoner_directory()))
    trace = record_trace(model, [1, 2, 3], 2)
    with pytest.raises(
        ValueError, match=r"learned_gate.* reads hidden states, which traces do not"
    ):
        check_replay(trace, [policy], None)
    both = "reads the rotary embedding and the output projection, which traces do not hold"
    with pytest.raises(ValueError, match=both):
        check_replay(trace, [methods.get("expected_attention@values=projected", 4)], None)
    with pytest.raises(ValueError, match=r"learned_gate.* reads hidden states: only models"):
        next(run_stream(policy, random_stream(Source("any"))))
