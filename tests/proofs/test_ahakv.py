"""AhaKV's claims speak of what `methods/ahakv.py` computes."""

from dataclasses import replace

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.policy import Never
from kvlab.reference.proofs import ahakv as proofs
from kvlab.reference.simulator.observed import observe_heads
from kvlab.reference.streams import Stream, run_stream
from support.tolerances import FLOAT64


def random_heads():
    for seed in range(5):
        yield tuple(np.random.default_rng(seed).normal(size=(3, 40, 8)))


def real_heads():
    for head in observe_heads(proofs.MODEL)[::4]:
        yield head.queries, head.keys, head.values


@pytest.mark.parametrize("heads", [random_heads, real_heads])
def test_the_method_scores_by_equations_5_and_12_to_15(heads):
    k, r = 30, 8
    policy = replace(methods.get(f"ahakv@recent={r}", k), schedule=Never())
    for queries, keys, values in heads():
        t = len(keys)
        confidence, everything = np.full(t, np.nan), np.ones((1, t), dtype=bool)
        stream = Stream(queries[None, None], keys[None], values[None], confidence, t, (t,))
        (result,) = run_stream(policy, stream)
        scores = policy.score.score(result.cache.state, result.seen, everything, k)
        expected = proofs.scores(queries, keys, values, k, r)
        np.testing.assert_allclose(scores[0], expected, rtol=FLOAT64, atol=FLOAT64)
