"""LazyEviction's claims speak of what `methods/lazy_eviction.py` computes."""

import numpy as np
import pytest
import sympy

from kvlab.reference import methods
from kvlab.reference.methods.lazy_eviction import decreasing
from kvlab.reference.proofs import lazy_eviction as proofs
from kvlab.reference.proofs.lazy_eviction import FORMS
from kvlab.reference.streams import Source, random_stream, run_stream
from support.tolerances import FLOAT64


@pytest.mark.parametrize("name", FORMS)
def test_the_methods_forms_are_those_of_the_proof(name):
    x = sympy.symbols("x")
    grid = np.array([0.0, 0.5, 1, 3, 10])
    expected = [float(FORMS[name](x).subs(x, at)) for at in grid]
    np.testing.assert_allclose(decreasing(name)(grid), expected, rtol=FLOAT64)


@pytest.mark.parametrize(
    ("options", "formula", "start"),
    [
        ("", proofs.importance, "step before birth"),
        (",h2_reading=printed", proofs.printed_importance, "step before birth"),
        (",official=true", proofs.official_importance, "step before birth"),
        (",stamp_start=birth", proofs.importance, "birth"),
        (",stamp_start=first_activation", proofs.importance, "first activation"),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_method_tracks_and_scores_by_equations_1_and_2(options, formula, start, seed):
    prompt, generated, threshold = 4, 30, 0.06
    policy = methods.get(f"lazy_eviction@window=31,threshold={threshold}{options}", 40)
    stream = random_stream(Source("tracked", seed), 1, 1, 8, prompt, generated, 1)
    results = list(run_stream(policy, stream))
    cache, seen = results[-1].cache, results[-1].seen
    rows = [result.seen.attention[0, 0, 0] for result in results]
    everything = np.ones((1, prompt + generated), dtype=bool)
    scores = policy.score.score(cache.state, seen, everything, 0)[0]
    attention = np.array([np.append(row, np.zeros(len(rows) - len(row))) for row in rows])
    tracked = proofs.tracked(attention, prompt, threshold, start)
    for j, (stamp, interval) in enumerate(tracked):
        expected = formula(interval, generated - stamp) if interval else 0.0
        assert scores[j] == pytest.approx(expected, rel=FLOAT64, abs=FLOAT64)


def test_the_methods_cache_has_the_sizes_of_algorithm_1():
    prompt, budget, window = 3, 6, 4
    policy = methods.get(f"lazy_eviction@window={window}", budget)
    results = list(run_stream(policy, random_stream(Source("sizes"), 1, 1, 8, prompt, 20, 1)))
    found = [result.seen.positions.shape[1] for result in results[prompt:]]
    expected = proofs.sizes(prompt, budget, window, lambda n, B: n > B, 20)
    assert [*found, len(results[-1].cache)] == expected
