"""What a timeline says is what the reference kept, and its JSON says what the timeline does."""

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.generate import generate
from kvlab.reference.simulator.recorder import record_generation
from kvlab.reference.simulator.timeline import GONE, LOOK, against
from kvlab.reference.tasks import reasoning

BUDGET = 100


pytestmark = pytest.mark.usefixtures("shapes")


@pytest.mark.parametrize("spec", ["h2o", "lazy_eviction@window=16,threshold=0.01", "streaming_llm"])
def test_entries_that_are_left_are_those_of_the_generation(reasoner, spec):
    model, tokenizer = reasoner
    prompt, kept = reasoning.held_out(1)[0].prompt, []
    run = record_generation(model, tokenizer, methods.get(spec, BUDGET), prompt, 40, budget=BUDGET)
    ids = tokenizer.encode(prompt).ids

    def watch(block, result):
        kept.append(result.cache.positions)

    generate(model, methods.get(spec, BUDGET), ids, 40, watch=watch)
    layers = len(run.layers)
    for step in range(len(run.steps)):
        stored = run.stored(step) != GONE
        for layer in range(layers):
            positions = kept[step * layers + layer]
            for head, entries in enumerate(positions):
                np.testing.assert_array_equal(np.flatnonzero(stored[layer, head]), entries)


def test_a_failure_says_what_the_heads_had_lost(reasoner):
    prompt = reasoning.held_out(1)[0].prompt
    policies = methods.get("full"), methods.get("streaming_llm", BUDGET)
    full, run = (record_generation(*reasoner, policy, prompt, 40) for policy in policies)
    position, expected, lost, attention, head = (against(run, full).failure or {}).values()
    assert full.texts[:position] == run.texts[:position]
    assert full.texts[position] == expected != run.texts[position]
    again = record_generation(*reasoner, policies[0], "".join(full.texts[:position]), 1)
    looks = np.stack([each.attention for each in again.snapshots])[..., : position - 1]
    seen = looks * (run.stored(position - full.prompt - 1)[..., : position - 1] == GONE)
    read = seen.max(axis=(0, 1))
    assert lost and seen[(*head, lost[0])] == read.max() and min(read[lost]) > LOOK
    np.testing.assert_allclose(attention, read[lost], rtol=1e-6)
