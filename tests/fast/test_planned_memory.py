"""The planner counts the bytes that a cache has allocated, slots without an entry included."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kvlab.fast import compress
from kvlab.reference import methods
from kvlab.reference.methods import takes_budget
from kvlab.reference.simulator.cost import Plan
from kvlab.reference.simulator.sizes import HARDWARE, Shape
from support.sampling import sampled

SHAPE = Shape("tiny", 3, 64, 4, 2, 32, 32, 32)
WITHIN = 0.02
"""Tolerance of a plan: what it leaves out are numbers of a layer, and positions of queries."""


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=SHAPE.hidden,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        head_dim=SHAPE.head_dim,
        num_hidden_layers=SHAPE.layers,
        intermediate_size=SHAPE.intermediate,
        vocab_size=SHAPE.vocabulary,
        max_position_embeddings=8192,
    )
    return LlamaForCausalLM(config).eval().to(torch.bfloat16)


def held(model, spec, budget, prompt, written):
    """Return the most bytes that the cache has allocated after any written token."""
    ids, most = torch.randint(0, SHAPE.vocabulary, (1, prompt + written)), 0
    entries = budget if takes_budget(spec) else None
    with torch.inference_mode(), compress(model, spec, entries) as cache:
        model(input_ids=ids[:, :prompt], past_key_values=cache)
        for token in ids[0, prompt:]:
            model(input_ids=token.view(1, 1), past_key_values=cache)
            most = max(most, cache.memory().total)
    return most


def check(model, spec, budget, prompt, written):
    policy = methods.get(spec, budget if takes_budget(spec) else None)
    on_cpu = {"batch": 1, "triton": False}
    plan = Plan(SHAPE, HARDWARE["h200"], policy, prompt, written, **on_cpu)
    found = held(model, spec, budget, prompt, written)
    assert plan.sequence_bytes == pytest.approx(found, rel=WITHIN)
    return plan, found


CODED = ("h2o@precision=nvfp4", "h2o@every=16,precision=fp8", "full@precision=turboquant")
SPECS = (*(spec for spec in methods.compared() if spec != "raas"), *CODED)
"""All but RaaS with its prompt, which is longer than the budget."""
KINDS = (
    *("h2o@every=16", "snapkv@window=16,schedule=every_block", "h2o@precision=nvfp4"),
    *("kivi@key_bits=4,value_bits=4,residual=32", "desirekv@interval=32,selector=8,group=32"),
    *("h2o", "full"),
)


@pytest.mark.parametrize("spec", sampled(SPECS, KINDS))
def test_a_plan_is_what_is_allocated(model, spec):
    """After 120 tokens 100 entries lie in 120 slots; their own bytes alone are a sixth less."""
    plan, found = check(model, spec, 100, 120, 40)
    if spec == "h2o":
        assert plan.logical_bytes < (1 - 5 * WITHIN) * found, "the same would pass for slots"


@pytest.mark.parametrize(("budget", "prompt"), [(30, 20), (200, 240), (200, 600)])
def test_slots_that_grow_and_shrink_are_planned(model, budget, prompt):
    check(model, "h2o", budget, prompt, 60)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [256, 1024, 4096])
@pytest.mark.parametrize("spec", SPECS)
def test_a_plan_of_many_entries_is_what_is_allocated(model, spec, budget):
    check(model, spec, budget, budget + budget // 4, 40)
