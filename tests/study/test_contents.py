"""Tables say what their sources say; numbers worked out by hand or taken from another path."""

import numpy as np
import pytest
from noise import noise

from kvlab.reference import methods
from kvlab.reference.invariants import Kept
from kvlab.reference.methods.caote import eviction_error
from kvlab.reference.simulator.cost import Plan, fleet
from kvlab.reference.simulator.judge import judge
from kvlab.reference.simulator.sizes import HARDWARE, SHAPES
from kvlab.reference.stored_vectors import StoredVectors
from study.checks import promises
from study.claims import explanation, finding, verdicts
from study.costs import cache_sizes, corners, fleets, servings, time_of_steps
from study.evictions import recomputed_errors, scores_by_entry
from study.precision import bytes_held
from study.replays import answers, judgements


def test_sizes_of_a_known_model():
    # Llama 3.1 8B: 2 · 2 · 32 · 8 · 128 = 131,072 bytes a token; 8.03 billion weights
    (row,) = cache_sizes([SHAPES["llama-3.1-8b"]], tokens=10_000).rows
    assert row[1:] == ("32", "8", "128", "16.1", "128", "1.31", "122,532")


def test_servings_and_fleets_are_the_plan_s():
    plan = Plan(SHAPES["qwen2.5-7b"], HARDWARE["h200"], methods.get("full"), 64, 256)
    (served,) = servings({"full": plan}).rows
    assert served[1] == "320" and served[3] == f"{plan.largest_batch:,}"
    (fleet_row,) = fleets({"full": plan}, users=10_000, least_speed=1).rows
    assert fleet_row[-1] == f"{fleet(plan, 10_000, 1).devices:,}"


def test_curves_are_drawn_by_their_corners():
    """A line that bends at 2, a step from 5 to 6."""
    bent = np.interp(np.arange(9), [0, 2, 8], [0.0, 4.0, 7.0])
    step = np.repeat([1.0, 2.0], [6, 3])
    assert corners(bent[None]).tolist() == [0, 2, 8]
    assert corners(np.stack([bent, step])).tolist() == [0, 2, 5, 6, 8]
    assert corners(np.ones((2, 9))).tolist() == [0, 8]
    plan = Plan(SHAPES["qwen2.5-7b"], HARDWARE["h200"], methods.get("full"), 64, 4096)
    assert len(time_of_steps(plan).svg) < 50_000


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
    assert row[0] == "h2o" and row[1] == "12" and row[2] == f"{mass:.3f}"


def test_answers_name_the_parts():
    (row,) = answers([methods.get("lazy_eviction", 60)]).rows
    assert row == ("lazy_eviction", "Recurrence", "EveryDecode", "Edges", "Entries", "Full")


def test_claims_are_run_and_told():
    claim, found = finding("CA-1")
    assert str(found.verdict) == "proved symbolically"
    assert claim.statement in explanation("CA-1")
    table = verdicts("caote", ("CA-1", "CA-2c"))
    assert [row[4] for row in table.rows] == ["proved symbolically", "refuted as printed"]
    with pytest.raises(ValueError, match="tag = 'XX-1' must be one of LE-1"):
        finding("XX-1")


def test_bytes_of_a_cache_by_hand():
    from kvlab.reference.cache import LayerCache

    keys = StoredVectors.empty(1, 4).append(np.arange(8.0).reshape(1, 2, 4))
    cache = LayerCache(keys, keys, np.array([[0, 1]]))
    # two entries of 4 channels, keys and values, 2 bytes each: 32; seen 4 tokens: half of 16 bits
    assert bytes_held({"mine": [cache]}, tokens=4).rows == [("mine", "2", "32", "0", "8.00")]


def test_promises_say_what_is_wrong():
    table = promises([Kept("one", 3, ""), Kept("two", 3, "token 4: late")])
    assert [row[2] for row in table.rows] == ["kept", "token 4: late"]
