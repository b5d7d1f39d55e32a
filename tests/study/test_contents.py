"""Tables say what their sources say; numbers worked out by hand or taken from another path."""

import numpy as np

from kvlab.reference import methods
from kvlab.reference.methods.caote import eviction_error
from kvlab.reference.simulator.cost import Plan
from kvlab.reference.simulator.judge import judge
from kvlab.reference.simulator.sizes import HARDWARE, SHAPES
from study.checks import explanation, verdicts
from study.costs import cache_sizes, entry_bytes, memory_held, remembered_bytes, work_per_token
from study.evictions import recomputed_errors, scores_by_entry
from study.replays import judgements
from support.noise import noise
from support.tables import cases

SHAPE = SHAPES["llama-3.1-8b"]
"""32 layers of 8 KV heads, 4 query heads each, 128 channels."""


def plan(spec, budget=None, generated=40):
    return Plan(SHAPE, HARDWARE["h200"], methods.get(spec, budget), 60, generated)


def cells(table):
    return {row[0]: row[1:] for row in table.rows}


def test_sizes_of_a_known_model():
    # 2 · 2 · 32 · 8 · 128 = 131,072 bytes a token; 8.03 billion weights
    (row,) = cache_sizes([SHAPE], tokens=10_000).rows
    assert row[1:] == ("32", "8", "128", "16.1", "128", "1.31", "122,532")


def test_work_by_hand():
    """H2O has 65 entries but for the first 4 tokens: probabilities of 4 query heads are read, a sum
    is read and written, 65·4·(4 + 2) bytes = 1.5 KiB; from the fifth token on one entry is evicted.
    A lagged method decides now and then."""
    found = cells(work_per_token(plan("h2o", 64, generated=400)))
    assert found["update what is remembered"][:2] == ("400", "1.5")
    assert found["find what to evict"][0] == "396"
    assert "move the survivors together" not in found
    found = cells(work_per_token(plan("lazy_eviction@window=10", 64)))
    assert (found["rate the entries"][0], found["update what is remembered"][0]) == ("4", "40")


def test_memory_by_hand():
    """100 entries of 32·8 heads at 512 bytes: 12.5 MiB; H2O's 64 at most, and 8 bytes each."""
    found = cells(memory_held(plan("h2o", 64), plan("full")))
    assert found["entries per KV head during a step, at most"] == ("65", "100")
    assert found["keys and values after a step, at most"] == ("8 MiB", "12 MiB")
    assert found["positions and scores after a step, at most"] == ("0.1 MiB", "0.1 MiB")
    assert found["remembered queries"] == ("none", "none")
    assert entry_bytes(methods.get("lazy_eviction", 64)) == 16


@cases(__file__, "remembered_queries_are_those_of_the_window", "spec rows")
def test_remembered_queries_are_those_of_the_window(spec, rows):
    assert remembered_bytes(methods.get(spec, 64), SHAPE, 60) == 2 * 8 * 4 * rows * 128


def test_recomputed_errors_agree_with_the_closed_form_and_differ_from_attention():
    rng = np.random.default_rng(0)
    h, values = rng.dirichlet(np.ones(9)), rng.normal(size=(9, 3))
    np.testing.assert_allclose(recomputed_errors(h, values), eviction_error(h, values))
    assert np.abs(recomputed_errors(h, values) - h).max() > 0.01
    table = scores_by_entry(np.array([0.5, 0.25, 0.25]), np.array([[0.0, 0], [4, 0], [0, 4]]))
    assert table.rows[0][2:] == ("0.5000", "1.8856", "1.4142", "1.4142")


def test_judgements_are_means_over_layers():
    trace, policy = noise(), methods.get("h2o", 12)
    layers = list(judge(trace, [policy]))
    (row,) = judgements(["h2o"], layers).rows
    mass = np.mean([layer[0].mass for layer in layers])
    assert row[:3] == ("h2o", "12", f"{mass:.3f}")


def test_claims_are_run_and_told():
    assert "proved symbolically: " in explanation("CA-1")
    table = verdicts("caote", ("CA-1", "CA-2c"))
    assert [row[4] for row in table.rows] == ["proved symbolically", "refuted as printed"]
