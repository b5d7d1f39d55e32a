"""CAOTE's claims speak of what `methods/caote.py` computes."""

from fractions import Fraction

import numpy as np
import pytest
from tolerances import FLOAT64

from kvlab.reference.methods.caote import (
    eviction_error,
    fast_eviction_error,
    joint_error,
    normalize,
)
from kvlab.reference.proofs import caote as proofs
from kvlab.reference.proofs.definitions import output_without, softmax
from kvlab.reference.simulator.observed import observe_heads


def random_cache(seed):
    rng = np.random.default_rng(seed)
    logits, values = 2 * rng.normal(size=9), rng.normal(size=(9, 4))
    return logits, softmax(logits), values


def real_caches():
    for head in observe_heads(proofs.MODEL)[::3]:
        for query in (50, 120, 200):
            logits = head.keys[: query + 1] @ head.queries[query] / np.sqrt(head.keys.shape[1])
            yield logits, softmax(logits), head.values[: query + 1]


def test_the_method_scores_the_change_of_the_output():
    for logits, alpha, values in (*map(random_cache, range(20)), *real_caches()):
        scores = eviction_error(alpha, values)
        everything = alpha @ values
        for j in (0, len(alpha) // 2, len(alpha) - 1, int(alpha.argmax())):
            error = np.linalg.norm(everything - output_without(logits, values, [j]))
            assert scores[j] == pytest.approx(error, rel=FLOAT64, abs=FLOAT64)


@pytest.mark.parametrize("seed", range(20))
def test_the_method_scores_sets_by_their_joint_change(seed):
    _, alpha, values = random_cache(seed)
    evicted = np.random.default_rng(seed).random(9) < 0.4
    error = proofs.joint_errors(alpha, values, evicted[None])[0]
    assert joint_error(alpha, values, evicted) == pytest.approx(error, rel=FLOAT64, abs=FLOAT64)


@pytest.mark.parametrize("seed", range(10))
def test_the_method_takes_the_mean_of_the_values_where_it_is_fast(seed):
    _, alpha, values = random_cache(seed)
    printed = proofs.equation_8(alpha, np.linalg.norm(values.mean(axis=0) - values, axis=1))
    np.testing.assert_allclose(fast_eviction_error(alpha, values), printed, rtol=FLOAT64)


def test_the_method_divides_by_the_sum():
    scores = np.array([1.0, 2, 5])
    h = [Fraction(s, 8) for s in (1, 2, 5)]
    np.testing.assert_allclose(normalize(scores), [float(x) for x in h], rtol=FLOAT64)
