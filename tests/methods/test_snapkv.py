from dataclasses import replace

import numpy as np

from kvlab.reference import methods
from kvlab.reference.cache import State
from kvlab.reference.policy import Never
from kvlab.reference.windows import max_pool, mean_pool
from support.build import asked_once, kept, looking, run, stream
from support.tables import cases
from support.tolerances import FLOAT64


def test_five_entries_by_hand():
    """u = .4 .1 .2 .1 | .2 in the window. Mean over 3 with zeros beyond the border:
    (0+.4+.1)/3 = .1667, (.4+.1+.2)/3 = .2333, (.1+.2+.1)/3 = .1333, (.2+.1+0)/3 = .1.
    B = 3 keeps the window and the two best: 1 and 0."""
    policy = methods.get("snapkv@window=1,kernel=3", 3)
    state, seen = asked_once(policy, [0.4, 0.1, 0.2, 0.1, 0.2])
    candidates = np.array([[True, True, True, True, False]])
    scores = policy.score.score(state, seen, candidates, 2)
    np.testing.assert_allclose(scores[0, :4], np.array([0.5, 0.7, 0.4, 0.3]) / 3, atol=FLOAT64)
    np.testing.assert_allclose(scores[0, 4], 0.2, atol=FLOAT64)
    assert kept(policy, state, seen) == [0, 1, 4]


def test_heads_are_averaged_before_the_maximum_by_hand():
    """Heads .6 .1 .1 .1 | .1 and .1 .6 .1 .1 | .1: mean .35 .35 .1 .1, of three .35 .35 .35 .1; the
    mean of their maxima would be .6 .6 .35 .1."""
    score = methods.get("snapkv@window=1,pooling=max,kernel=3", 3).score
    seen = looking([[[[6, 1, 1, 1, 1]], [[1, 6, 1, 1, 1]]]])
    scores = score.score(score.observe(State(), seen), seen, seen.positions < 4, 2)
    np.testing.assert_allclose(scores[0, :4], [0.35, 0.35, 0.35, 0.1], atol=FLOAT64)


@cases(__file__, "rows_are_summed_and_heads_averaged", "spec expected")
def test_rows_are_summed_and_heads_averaged(spec, expected):
    """Two KV heads of three query heads, equal logits: row i gives each entry 1/i."""
    queries, policy = np.zeros((2, 3, 4, 1)), replace(methods.get(spec, 9), schedule=Never())
    (result,) = run(policy, queries, queries[:, 0], queries[:, 0], prompt=4)
    candidates = result.seen.positions < 2
    scores = policy.score.score(result.cache.state, result.seen, candidates, 1)
    np.testing.assert_allclose(scores[:, :2], expected, atol=FLOAT64)


def test_pooling_at_the_border_loses_the_mass_of_the_sink():
    """All mass on entry 0: of 5 places that would receive 1/5, only 3 exist; of 7, only 4."""
    mass = np.zeros((1, 20))
    mass[0, 0] = 1.0
    for kernel, left in ((5, 3 / 5), (7, 4 / 7)):
        np.testing.assert_allclose(mean_pool(mass, kernel, "zero").sum(), left, atol=FLOAT64)
    inner = np.roll(mass, 10)
    np.testing.assert_allclose(mean_pool(inner, 7, "zero").sum(), 1.0, atol=FLOAT64)


def test_other_poolings_by_hand():
    x = np.array([[3.0, 0.0, 0.0, 6.0]])
    np.testing.assert_allclose(mean_pool(x, 3, "shrink"), [[1.5, 1.0, 2.0, 3.0]], atol=FLOAT64)
    np.testing.assert_array_equal(max_pool(x, 3), [[3.0, 3.0, 6.0, 6.0]])
    np.testing.assert_array_equal(max_pool(x, 9), [[6.0, 6.0, 6.0, 6.0]])


def test_the_window_spans_blocks():
    """A last block shorter than the window: the same candidates are scored by the same queries."""
    queries, keys, values = stream(np.random.default_rng(4), 1, 2, 4, 20)
    at_once = run(methods.get("snapkv@window=4", 8), queries, keys, values, 20)[-1]
    split = run(methods.get("snapkv@window=4", 8), queries, keys, values, 20, block=9)[-1]
    np.testing.assert_array_equal(at_once.cache.positions, split.cache.positions)
