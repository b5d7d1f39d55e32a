"""DesireKV's claims speak of what the methods and quantisers compute."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.methods import desirekv as method
from kvlab.reference.methods.desirekv import decision_window
from kvlab.reference.policy import Never
from kvlab.reference.proofs import desirekv as proofs
from kvlab.reference.simulator.observed import observe_heads
from kvlab.reference.streams import Stream, run_stream
from support.tolerances import FLOAT64


def keys():
    drawn = np.random.default_rng(0).standard_t(3, size=(20, 32))
    return [*drawn, *(head.keys[40] for head in observe_heads(proofs.MODEL))]


def exact(key):
    return [Fraction(float(x)) for x in key]


def test_the_method_scores_outliers_by_equation_6():
    for key in keys():
        expected = float(proofs.outlier_score(exact(key)))
        assert method.outlier_score(key) == pytest.approx(expected, rel=FLOAT64, abs=FLOAT64)


def test_a_full_cache_holds_the_bytes_of_equation_2():
    heads, d, tokens = 3, 8, 11
    vectors, confidence = np.ones((heads, tokens, d)), np.full(tokens, np.nan)
    stream = Stream(vectors[:, None], vectors, vectors, confidence, tokens, (tokens,))
    (result,) = run_stream(methods.get("full"), stream)
    assert result.cache.nbytes == tokens * heads * (d + d) * 16 / 8


@pytest.mark.parametrize("radius", [0, 3])
def test_the_method_averages_and_smooths_attention_by_equations_3_and_4(radius):
    """Two KV heads of two query heads each; P = 12 candidates, R = 4 window queries, no prompt but
    one token; beyond the window lie zeros."""
    P, R, d = 12, 4, 8
    t = 1 + P + R
    policy = methods.get(f"desirekv@interval={P},selector={R},radius={radius}")
    queries = np.random.default_rng(0).normal(size=(2, 2, t, d))
    keys = np.random.default_rng(1).normal(size=(2, t, d))
    stream = Stream(queries, keys, keys, np.full(t, 0.5), 1, (1,) * t)
    *_, last = run_stream(replace(policy, schedule=Never()), stream)
    candidates, expected = slice(1, 1 + P), np.zeros(P)
    for kv_head, group in enumerate(queries):
        for query in group[:, -R:].reshape(-1, d):
            logits = keys[kv_head, candidates] @ query / np.sqrt(d)
            expected += np.exp(logits) / np.exp(logits).sum()
    members = decision_window(policy.score.options, last.seen)
    scores = policy.score.score(last.cache.state, last.seen, members, P)
    smoothed = np.convolve(expected / (R * 4), np.ones(2 * radius + 1) / (2 * radius + 1), "same")
    np.testing.assert_allclose(scores[0][candidates], smoothed, rtol=FLOAT64)


def test_the_method_joins_blocks_by_equations_5_7_and_8():
    """The token with the largest score is outside of the window."""
    keys = np.random.default_rng(2).standard_t(2, size=(2, 9, 24))
    expected = []
    for token in range(9):
        blocks = [keys[g, token, start : start + 8] for g in range(2) for start in (0, 8, 16)]
        expected.append(float(sum(proofs.outlier_score(exact(block)) for block in blocks)) / 6)
    window = np.tile(np.array(expected) < max(expected), (2, 1))
    found = method.sensitivity(keys, window, 8)
    np.testing.assert_allclose(found, np.array(expected) / sorted(expected)[-2], rtol=FLOAT64)
