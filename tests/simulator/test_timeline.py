"""What a timeline says is what the reference kept, and its JSON says what the timeline does."""

import base64
import json
from itertools import pairwise

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.generate import generate
from kvlab.reference.simulator.recorder import record_generation, record_replay
from kvlab.reference.simulator.timeline import GONE, LOOK, Timeline, against, write
from kvlab.reference.tasks import reasoning
from support.noise import noise

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
    position, expected, lost = (against(run, full).failure or {}).values()
    assert full.texts[:position] == run.texts[:position]
    assert full.texts[position] == expected != run.texts[position]
    again = record_generation(*reasoner, policies[0], "".join(full.texts[:position]), 1)
    looks = np.stack([each.attention for each in again.snapshots])[..., : position - 1]
    gone = run.stored(position - full.prompt - 1)[..., : position - 1] == GONE
    read = (looks * gone).max(axis=(0, 1))
    assert lost and read[lost[0]] == read.max() and (read[lost] > LOOK).all()


def unpacked(array):
    raw, dtype = base64.b64decode(array["data"]), array["dtype"]
    if dtype == "bfloat16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, np.dtype(dtype).newbyteorder("<")).astype(int)


def test_the_json_holds_every_state_and_snapshot():
    texts = [f"{n} " for n in range(70)]
    spec = "ddks@interval=8,selector=3,group=4"
    run = record_replay(noise(), texts, methods.get(spec), most_values=2**11)
    found = json.loads(write(Timeline("noise", 0.01, (run,))))
    assert (found["format"], found["version"], found["model"]) == ("kvlab timeline", 1, "noise")
    (stored,) = found["runs"]
    assert (stored["method"], stored["prompt"], stored["texts"]) == (run.method, 20, texts)
    np.testing.assert_array_equal(unpacked(stored["steps"]), run.steps)
    assert len(stored["states"]) == len(run.states) > 2
    snapshots = unpacked(stored["snapshots"])
    assert 2 < len(snapshots) < len(run.steps)
    last = np.stack([final_states(head) for head in stored["heads"]]).reshape(2, 2, 70)
    np.testing.assert_array_equal(last, run.stored(len(run.steps) - 1))
    own = [each for each in run.snapshots if each.layer == 1]
    np.testing.assert_array_equal(snapshots, [each.step for each in own])
    columns = [{"attention": x.attention, "score": x.score, **x.tracked} for x in own]
    for name in ("attention", "score", "stamp", "interval"):
        expected = np.concatenate([each[name][0] for each in columns])
        np.testing.assert_allclose(unpacked(stored["heads"][2][name]), expected, rtol=2**-8)


def final_states(head):
    """The state of every token in the end: 1 at first, then that of its last event."""
    borders, states = unpacked(head["events"]), unpacked(head["event_states"])
    return np.array([states[last - 1] if last > first else 1 for first, last in pairwise(borders)])
