"""Activations of a trace by hand, and against what LazyEviction's own state says."""

import numpy as np
import pytest

from kvlab.reference import Never, Nobody, Policy, Unlimited, generate, methods
from kvlab.reference.models import reasoner_directory
from kvlab.reference.simulator import workloads
from kvlab.reference.simulator.observed import (
    Recurring,
    activations,
    intervals,
    most_recurring,
)

THRESHOLD = 0.01


@pytest.fixture(scope="module")
def tracked(reasoner, solved):
    """The trace, and every entry's interval as LazyEviction's own state has it after the answer."""
    prompt, stop, trace = solved
    score = methods.get("lazy_eviction", 10**9, threshold=THRESHOLD).score
    observing = Policy("observing", score, Never(), Nobody(), Unlimited())
    caches = generate(reasoner[0], observing, prompt, 200, stop=stop).session.caches
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
    assert intervals(reasoner_directory(), 1, 0, THRESHOLD).tolist() == found


def test_another_threshold_gives_other_intervals(tracked):
    trace, live = tracked
    found = [entry.interval for entry in activations(trace, 10 * THRESHOLD)]
    assert (np.array(found) != live).any()


def test_the_most_recurring_entries_of_a_workload_are_those_that_recur():
    workload = workloads.periodic_recurrence(seed=0)
    entries = activations(workload.trace, 0.05)
    found = most_recurring(entries, count=len(workload.facts["recurring"]), gap=20)
    places = [entry.position for entry in found]
    assert set(places) == set(workload.facts["recurring"].tolist())
    by_place = dict(zip(workload.facts["recurring"], workload.facts["intervals"], strict=True))
    # an entry's first gap starts at the step before its birth, one earlier than the workload's
    assert all(entry.interval == by_place[entry.position] + 1 for entry in found)


def test_a_negative_threshold_is_refused(tracked):
    with pytest.raises(ValueError, match="threshold = -1 must be between 0 and 1"):
        next(activations(tracked[0], -1))
