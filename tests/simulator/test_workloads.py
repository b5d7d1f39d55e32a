"""Every workload has the structure that it promises."""

import numpy as np
import pytest

from kvlab.reference.simulator import workloads
from kvlab.reference.simulator.replay import Layer
from support.tables import cases
from support.tolerances import FLOAT64


@cases(__file__, "a_seed_says_it_all", "name")
def test_queries_and_keys_give_the_wanted_attention_and_a_seed_says_it_all(name):
    make = getattr(workloads, name)
    first, again, other = (make(seed=seed) for seed in (1, 1, 2))
    found = Layer.of(first.trace, 0).full_attention(0, len(first.logits))[0, 0]
    np.testing.assert_allclose(found, first.attention, rtol=1e3 * FLOAT64, atol=FLOAT64)
    np.testing.assert_array_equal(first.trace.keys, again.trace.keys)
    assert (first.trace.values != other.trace.values).any()


def test_what_fillers_recency_and_sinks_promise():
    fillers = workloads.periodic_recurrence(filler_uses=3, filler_interval=5)
    active = fillers.facts["active"][:, np.setdiff1d(np.arange(300), fillers.facts["recurring"])]
    assert (active.sum(axis=0) == 3).all() and (np.diff(np.flatnonzero(active[:, 0])) == 5).all()
    recent = workloads.pure_recency(width=12).logits
    np.testing.assert_allclose(recent[300, 200:301], recent[350, 250:351], rtol=FLOAT64)
    sinks = workloads.sinks(mass=0.3)
    share = sinks.attention[4:, sinks.facts["sinks"]].sum(axis=1)
    np.testing.assert_allclose(share, 0.3, rtol=FLOAT64)


def test_needles_are_found_in_the_end_only():
    workload = workloads.needles(depths=(0.25, 0.5))
    attention, places = workload.attention, workload.facts["needles"]
    np.testing.assert_array_equal(places, [64, 128])
    assert attention[-16:, places].sum(axis=1).min() > 0.5
    assert attention[200:-16, places].max() < 0.01


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="prompt = 8 between 1 and 7"):
        workloads.workload("none", np.zeros((8, 8)), prompt=8, seed=0)
