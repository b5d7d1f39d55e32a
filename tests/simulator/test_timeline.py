"""What a timeline says is what the reference kept; timelines drawn at random are timelines."""

import dataclasses
import json

import numpy as np
import pytest

from kvlab.reference import generate, methods
from kvlab.reference.simulator.recorder import record_generation
from kvlab.reference.simulator.synthetic import synthetic
from kvlab.reference.simulator.timeline import GONE, read, write
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


def test_a_timeline_is_read_as_it_was_written():
    written = synthetic()
    found = read(write(written))
    assert found.model == written.model
    for ours, theirs in zip(found.runs, written.runs, strict=True):
        assert ours.texts == theirs.texts
        for name, column in dataclasses.asdict(theirs.events).items():
            np.testing.assert_array_equal(getattr(ours.events, name), column)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda x: x.update(version=2), "version = 2 must be 1"),
        (lambda x: x.update(format="cat"), "no timeline"),
        (lambda x: x.pop("runs"), "lacks 'runs'"),
        (lambda x: x["runs"][0]["steps"].update(dtype="float64"), "must be uint8"),
    ],
)
def test_damage_is_named(damage, message):
    stored = json.loads(write(synthetic()))
    damage(stored)
    with pytest.raises(ValueError, match=message):
        read(json.dumps(stored))


# --- drawn at random ------------------------------------------------------------------------------


def test_every_head_keeps_as_many_entries_as_the_budget_lets_it():
    found = synthetic(3, 50, 20, 2, 3, 30, 7)
    assert len(found.runs) == 3
    for run in found.runs:
        assert (len(run.layers), run.kv_heads, run.read) == (2, 3, 50)
        np.testing.assert_allclose(run.entries(), np.minimum(run.steps, 30))
    assert len(read(write(found)).runs) == 3


def test_the_seed_decides():
    one, same, other = (synthetic(seed=seed).runs[0] for seed in (1, 1, 2))
    last = len(one.steps) - 1
    np.testing.assert_array_equal(one.stored(last), same.stored(last))
    assert (one.stored(last) != other.stored(last)).any()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layers": 0}, "layers = 0 must be at least 1"),
        ({"budget": -1}, "budget = -1 must be at least 1"),
        ({"tokens": 5, "prompt": 6}, "prompt = 6 must be at most tokens = 5"),
        ({"tokens": 5, "prompt": 2, "texts": ("a",)}, "there are 1, there must be tokens . 1 = 6"),
    ],
)
def test_impossible_sizes_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        synthetic(**wrong)
