"""LazyEviction's claims speak of what `methods/lazy_eviction.py` computes."""

import numpy as np
import pytest
import sympy
from tolerances import FLOAT64

from kvlab.reference import methods
from kvlab.reference.methods.lazy_eviction import decreasing
from kvlab.reference.observation import Clock
from kvlab.reference.proofs import lazy_eviction as proofs
from kvlab.reference.proofs.lazy_eviction import FORMS
from kvlab.reference.step import Block, empty_cache, step


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
    cache, rows, seen = empty_cache(policy, 1, 8), [], None
    rng = np.random.default_rng(seed)
    for token in range(prompt + generated):
        queries, keys, values = (rng.normal(size=(1, 1, 8)) for _ in range(3))
        clock = Clock(seen=token + 1, block=1, prompt=prompt)
        block = Block(clock, 0, queries[None], keys, values, np.full(token + 1, np.nan), None)
        result = step(policy, cache, block)
        cache, seen = result.cache, result.seen
        rows.append(seen.attention[0, 0, 0])
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
    cache, found = empty_cache(policy, 1, 4), []
    for token in range(prompt + 20):
        queries, keys, values = (np.ones((1, 1, 4)) for _ in range(3))
        clock = Clock(seen=token + 1, block=1, prompt=prompt)
        block = Block(clock, 0, queries[None], keys, values, np.full(token + 1, np.nan), None)
        result = step(policy, cache, block)
        cache = result.cache
        if token >= prompt:
            found.append(result.seen.positions.shape[1])
    expected = proofs.sizes(prompt, budget, window, lambda n, B: n > B, 20)
    assert [*found, len(cache)] == expected
