"""What is observed in attention and keys: by hand, and against what the methods themselves say."""

import numpy as np
import pytest

from kvlab.reference import Never, Nobody, Policy, Unlimited, methods
from kvlab.reference.generate import generate
from kvlab.reference.models import reasoner_directory
from kvlab.reference.simulator import workloads
from kvlab.reference.simulator.observed import (
    QUADRANTS,
    Head,
    Quadrants,
    Recurring,
    activations,
    choice,
    intervals,
    quadrants,
)
from kvlab.reference.simulator.replay import Layer
from kvlab.reference.simulator.trace import record_trace
from kvlab.reference.tasks import reasoning
from study import recurrence
from support.noise import noise
from support.tolerances import FLOAT64

# --- recurrence -----------------------------------------------------------------------------------


THRESHOLD = 0.01


@pytest.fixture(scope="module")
def tracked(reasoner):
    """A trace, and every entry's interval as LazyEviction's own state has it after the answer."""
    model, tokenizer = reasoner
    prompt = tokenizer.encode(reasoning.held_out(1)[0].prompt).ids
    stop = tokenizer.encode(reasoning.END).ids[0]
    trace = record_trace(model, prompt, 200, stop)
    score = methods.get("lazy_eviction", 10**9, threshold=THRESHOLD).score
    observing = Policy("observing", score, Never(), Nobody(), Unlimited())
    caches = generate(model, observing, prompt, 200, stop=stop).session.caches
    return trace, np.concatenate([cache.state.entries["interval"].ravel() for cache in caches])


def test_gaps_and_interval_of_an_entry():
    # born after step 2, activated at 3, 5, 9 and 10: gaps 1, 2, 4, 1
    entry = Recurring(0, 0, 12, 0.1, (3, 5, 9, 10), born=2)
    assert entry.gaps == (1, 2, 4, 1) and entry.interval == 4
    assert Recurring(0, 0, 12, 0.1, (), born=2).interval == 0


def test_intervals_are_those_that_lazy_eviction_tracks(tracked):
    trace, live = tracked
    found = [entry.interval for entry in activations(trace, THRESHOLD)]
    np.testing.assert_array_equal(found, live)
    others = [entry.interval for entry in activations(trace, 10 * THRESHOLD)]
    assert (np.array(others) != live).any()
    assert intervals(reasoner_directory(), 1, 0, THRESHOLD).tolist() == found


def test_the_most_recurring_entries_of_a_workload_are_those_that_recur():
    workload = workloads.periodic_recurrence(seed=0)
    entries = activations(workload.trace, 0.05)
    found = recurrence.most_recurring(entries, count=len(workload.facts["recurring"]), gap=20)
    places = [entry.position for entry in found]
    assert set(places) == set(workload.facts["recurring"].tolist())
    by_place = dict(zip(workload.facts["recurring"], workload.facts["intervals"], strict=True))
    # an entry's first gap starts at the step before its birth, one earlier than the workload's
    assert all(entry.interval == by_place[entry.position] + 1 for entry in found)


# --- what is evicted ------------------------------------------------------------------------------


def head(weights, values):
    """One head of one channel whose queries pay attention in proportion to whole numbers."""
    t = len(weights)
    keys = np.log(np.asarray(weights, dtype=float))[:, None]
    return Head(0, 0, np.ones((t, 1)), keys, np.asarray(values, dtype=float)[:, None])


def test_attention_and_error_name_other_entries():
    # weights 2, 3, 15, 1 of 21; values 10, 1, 1, 1: output 39/21 = 13/7.
    # entry 0: 2/19·(10 − 13/7) = 6/7; entry 1: 3/18·(13/7 − 1) = 1/7; over 13/7: 6/13 and 1/13.
    found = choice(head([2, 3, 15, 1], [10, 1, 1, 1]), 0.0, first=3)
    np.testing.assert_allclose(found, [[6 / 13], [1 / 13], [0]], atol=FLOAT64)
    # without entries 0 and 1 all values are 1: 13/7 − 1 = 6/7, over 13/7: 6/13.
    together = choice(head([2, 3, 15, 1], [10, 1, 1, 1]), 0.7, first=3)
    np.testing.assert_allclose(together[0], [6 / 13], atol=FLOAT64)


# --- importance and sensitivity -------------------------------------------------------------------


def test_quadrants_are_named_as_in_the_paper():
    # medians 2.5 and 2.5; one token each: neither, important, both, sensitive
    found = Quadrants(np.array([1.0, 3, 4, 2]), np.array([1.0, 2, 3, 4]))
    assert found.important.tolist() == [False, True, True, False]
    assert found.sensitive.tolist() == [False, False, True, True]
    assert found.counts == dict.fromkeys(QUADRANTS, 1)
    assert found.r_squared == pytest.approx(0.16)  # correlation 2/5


def test_a_layer_is_judged_without_its_recent_tokens():
    layer = Layer.of(noise(t=70), 0)
    found = quadrants(layer, recent=20)
    assert found.importance.shape == found.sensitivity.shape == (50,)
    assert found.sensitivity.max() == 1
    assert sum(found.counts.values()) == 50
    attention = layer.full_attention(50, 70)[..., :50].mean(axis=(0, 1, 2))
    assert found.importance[25] == pytest.approx(attention[22:29].mean())


def test_quadrants_need_two_tokens():
    with pytest.raises(ValueError, match="recent = 69 must leave two of the"):
        quadrants(Layer.of(noise(), 0), recent=69)
