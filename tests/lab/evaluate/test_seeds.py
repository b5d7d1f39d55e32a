"""A job draws by its seed alone: whoever does it, in whatever order, after whatever else."""

import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from kvlab.fast.lab import points
from kvlab.fast.lab.points import Row, measure_points
from kvlab.fast.lab.sweep import jobs as doing, kept
from kvlab.fast.lab.sweep.jobs import in_this_process
from kvlab.fast.lab.sweep.plan import make_plan
from kvlab.fast.methods import knorm as fast
from kvlab.reference.generators import seeded
from kvlab.reference.methods import knorm as reference
from support.sampling import slow
from support.sweeping import short_sweep

LEGACY = np.random.mtrand._rand
"""The generator behind `numpy.random.random` and its like."""


def shared():
    """Draw from each of the shared generators."""
    return random.random(), float(LEGACY.random()), float(torch.rand(()))


# --- what the generators do ----------------------------------------------------------------------


def test_seeded_generators_draw_the_same_and_go_on_as_if_nothing_had_been_drawn():
    with seeded(1):
        first, second = shared(), shared()
    shared()
    with seeded(5):
        outer = shared(), shared()
    with seeded(5):
        one = shared()
        with seeded(1):
            assert (shared(), shared()) == (first, second)
        assert (one, shared()) == outer
    assert len({first, second, *outer}) == 4
    with seeded(2, 0) as _:
        assert shared() != first


def test_generators_are_given_back_after_an_error():
    before = states()
    with pytest.raises(ValueError, match="non-negative"), seeded(3), seeded(-1):
        pass
    assert before == states()


def states():
    return random.getstate(), torch.get_rng_state().tolist(), LEGACY.get_state()[1].tolist()


# --- jobs ----------------------------------------------------------------------------------------


@pytest.fixture
def drawing(monkeypatch):
    """Let Knorm draw from the generators that a process shares, on both sides."""

    def drawn(self, state, seen, candidates, room):
        return LEGACY.random(seen.positions.shape) + random.random()

    def drawn_in_tensors(self, state, seen, candidates, room):
        return torch.rand(seen.positions.shape) + random.random() + float(LEGACY.random())

    monkeypatch.setattr(reference.KeyNorm, "score", drawn)
    monkeypatch.setattr(fast.KeyNorm, "score", drawn_in_tensors)


def planned(backend, seeds=(0,)):
    wanted = {"methods": ["knorm", "random"], "problems": 2, "batch": 1, "seeds": list(seeds)}
    return list(make_plan(short_sweep(**wanted, measured=1, backend=backend)).jobs())


def found(engine, jobs):
    """Return what is found in each job, but for the times."""
    return {
        job.id: [{**vars(row), "seconds_per_token": None} for row in rows]
        for job, rows in engine(jobs)
    }


@pytest.mark.parametrize("backend", ["fast", slow("reference")])
def test_a_job_finds_the_same_in_any_order_after_any_other(backend, drawing):
    jobs = planned(backend)
    torch.manual_seed(0)
    first = found(in_this_process, jobs)
    shared()
    assert found(in_this_process, jobs[::-1]) == first


@pytest.mark.slow
def test_without_seeds_a_job_would_find_something_else(drawing, monkeypatch):
    monkeypatch.setattr(doing, "seeded", lambda *key: nullcontext())
    job = planned("fast")[0]
    assert job.method == "knorm"
    assert found(in_this_process, [job]) != found(in_this_process, [job])


def test_whether_a_process_makes_anew_what_it_keeps_changes_nothing_that_is_drawn():
    drawn = []
    for _ in range(2):
        with seeded(1):
            kept.once("answers", "key", shared)
            drawn.append(shared())
    kept.start()
    assert drawn[0] == drawn[1]


def test_every_seed_and_batch_draws_anew(drawing):
    jobs = [job for job in planned("fast", (0, 3)) if job.method == "knorm"]
    assert [job.draw_seed for job in jobs] == [0, 1009, 3, 1012]
    assert len({job.id for job in jobs}) == 4


def test_points_are_measured_with_the_same_seed_in_any_order(monkeypatch):
    def measure(method, budget):
        drawn[method] = shared()
        return Row(method=method, budget=budget)

    orders = []
    for methods in (("h2o", "tova"), ("tova", "h2o")):
        drawn = {}
        measure_points([(method, 4) for method in methods], measure, Row)
        orders.append(drawn)
    assert orders[0] == orders[1]
    monkeypatch.setattr(points, "seeded", lambda *key: nullcontext())
    measure_points([("h2o", 4), ("tova", 4)], measure, Row)
    assert drawn != orders[0]
