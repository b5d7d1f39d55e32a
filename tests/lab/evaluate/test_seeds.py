"""A job draws by its seed alone: whoever does it, in whatever order, after whatever else."""

import random
import sys
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch

from kvlab.fast.lab import points
from kvlab.fast.lab.points import Row, measure_points
from kvlab.fast.lab.sweep import jobs as doing
from kvlab.fast.lab.sweep.jobs import in_processes, in_this_process
from kvlab.fast.lab.sweep.plan import make_plan
from kvlab.reference.generators import seeded
from support.outside import methods_named
from support.sweeping import short_sweep

DRAWN = '''
"""Draws from the generators that a process shares."""

import random
from dataclasses import dataclass

import numpy as np

from kvlab.reference import Edges, Entries, EveryBlock, Method, Needs, Policy, Score


@dataclass(frozen=True)
class Shared(Score):
    needs = Needs(rows="none")

    def score(self, state, seen, candidates, room):
        return np.random.random(seen.positions.shape) + random.random()


@dataclass(frozen=True)
class Drawn(Method):
    name = "drawn"

    def policy(self, budget):
        return Policy(self.name, Shared(), EveryBlock(), Edges(recent=1), Entries(budget))
'''

FAST = """
import random

import numpy as np
import torch
from drawn import Shared

from kvlab.fast import Score, twin_of


@twin_of(Shared)
class FastShared(Score):
    def score(self, state, seen, candidates, room):
        return torch.rand(seen.positions.shape) + random.random() + float(np.random.random())
"""


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
def drawing(tmp_path):
    for name, source in (("drawn", DRAWN), ("fast_drawn", FAST)):
        (tmp_path / f"{name}.py").write_text(source)
    with methods_named(tmp_path / "drawn.py", tmp_path / "fast_drawn.py"):
        yield
    sys.modules.pop("drawn", None)


def planned(backend, seeds=(0,)):
    wanted = {"methods": ["drawn", "random"], "problems": 2, "batch": 1, "seeds": list(seeds)}
    return list(make_plan(short_sweep(**wanted, measured=1, backend=backend)).jobs())


def found(engine, jobs):
    """Return what is found in each job, but for the times."""
    return {
        job.id: [{**vars(row), "seconds_per_token": None} for row in rows]
        for job, rows in engine(jobs)
    }


@pytest.mark.parametrize("backend", ["fast", "reference"])
def test_a_job_finds_the_same_in_any_order_after_any_other(backend, drawing):
    jobs = planned(backend)
    torch.manual_seed(0)
    first = found(in_this_process, jobs)
    shared()
    assert found(in_this_process, jobs[::-1]) == first


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fast", "reference"])
def test_a_job_finds_the_same_in_any_process(backend, drawing):
    jobs = [job for job in planned(backend) if job.method == "drawn"]
    assert found(partial(in_processes, workers=2), jobs) == found(in_this_process, jobs)


def test_without_seeds_a_job_would_find_something_else(drawing, monkeypatch):
    monkeypatch.setattr(doing, "seeded", lambda *key: nullcontext())
    job = planned("fast")[0]
    assert job.method == "drawn"
    assert found(in_this_process, [job]) != found(in_this_process, [job])


def test_whether_a_process_makes_anew_what_it_keeps_changes_nothing_that_is_drawn():
    drawn = []
    for _ in range(2):
        with seeded(1):
            doing._once("answers", "key", shared)
            drawn.append(shared())
    doing._kept.clear()
    assert drawn[0] == drawn[1]


def test_every_seed_and_batch_draws_anew(drawing):
    jobs = [job for job in planned("fast", (0, 3)) if job.method == "drawn"]
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
