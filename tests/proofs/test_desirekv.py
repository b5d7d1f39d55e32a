"""DesireKV's claims speak of what the methods and quantisers compute."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from tolerances import FLOAT16_METADATA, FLOAT64

from kvlab.reference import methods
from kvlab.reference.methods import desirekv as method
from kvlab.reference.methods.desirekv import decision_window
from kvlab.reference.observation import Clock
from kvlab.reference.policy import Never
from kvlab.reference.proofs import desirekv as proofs
from kvlab.reference.quantization import quantize
from kvlab.reference.simulator.observed import observe_heads
from kvlab.reference.step import Block, empty_cache, step
from kvlab.reference.windows import mean_pool


def keys():
    rng = np.random.default_rng(0)
    return [
        *rng.standard_t(3, size=(20, 32)),
        *(head.keys[40] for head in observe_heads(proofs.MODEL)),
    ]


@pytest.mark.parametrize("key", keys())
def test_the_method_scores_outliers_by_equation_6(key):
    block = [Fraction(float(x)) for x in key]
    expected = float(proofs.outlier_score(block))
    assert method.outlier_score(key) == pytest.approx(expected, rel=FLOAT64, abs=FLOAT64)


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("key", keys()[::4])
def test_the_quantiser_keeps_the_bound(key, bits):
    stored = quantize(key, bits, 32).dequantize()
    exact = proofs.quantized([Fraction(float(x)) for x in key], bits)
    step = (key.max() - key.min()) / (2**bits - 1)
    slack = FLOAT16_METADATA * np.abs(key).max()
    assert np.abs(stored - key).max() <= step / 2 + 2 * slack
    off = np.abs(stored - np.array([float(x) for x in exact]))
    assert np.minimum(off, np.abs(off - step)).max() <= 4 * slack


def test_a_full_cache_holds_the_bytes_of_equation_2():
    heads, d, tokens = 3, 8, 11
    vectors = np.ones((heads, tokens, d))
    policy = methods.get("full")
    block = Block(
        Clock(seen=tokens, block=tokens, prompt=tokens),
        0,
        vectors[:, None],
        vectors,
        vectors,
        np.full(tokens, np.nan),
        None,
    )
    cache = step(policy, empty_cache(policy, heads, d), block).cache
    assert cache.nbytes == tokens * heads * (d + d) * 16 / 8


def random_head_vectors(tokens, heads, d, seed=0):
    return np.random.default_rng(seed).normal(size=(tokens, heads, d))


def test_the_method_averages_attention_by_equation_3():
    """Two KV heads of two query heads each; P = 12 candidates, R = 4 window queries, no prompt but
    one token; nothing is smoothed."""
    P, R, d = 12, 4, 8
    policy = methods.get(f"desirekv@interval={P},selector={R},radius=0")
    queries = random_head_vectors(1 + P + R, 4, d)
    keys = random_head_vectors(1 + P + R, 2, d, seed=1)
    cache, seen = empty_cache(policy, 2, d), None
    for token in range(1 + P + R):
        clock = Clock(seen=token + 1, block=1, prompt=1)
        own = queries[token].reshape(2, 2, 1, d), keys[token][:, None], keys[token][:, None]
        block = Block(clock, 0, *own, np.full(token + 1, 0.5), None)
        result = step(replace(policy, schedule=Never()), cache, block)
        cache, seen = result.cache, result.seen
    candidates = slice(1, 1 + P)
    expected = np.zeros(P)
    for query in queries[-R:]:
        for head in range(4):
            logits = keys[candidates, head // 2] @ query[head] / np.sqrt(d)
            expected += np.exp(logits) / np.exp(logits).sum()
    members = decision_window(policy.score.options, seen)
    scores = policy.score.score(cache.state, seen, members, P)
    np.testing.assert_allclose(scores[0][candidates], expected / (R * 4), rtol=FLOAT64)


def test_the_method_joins_blocks_by_equations_5_7_and_8():
    keys = np.random.default_rng(2).standard_t(2, size=(2, 9, 24))
    expected = []
    for token in range(9):
        blocks = [keys[g, token, start : start + 8] for g in range(2) for start in (0, 8, 16)]
        exact = [proofs.outlier_score([Fraction(float(x)) for x in block]) for block in blocks]
        expected.append(float(sum(exact)) / 6)
    found = method.sensitivity(keys, np.ones((2, 9), dtype=bool), 8)
    np.testing.assert_allclose(found, np.array(expected) / max(expected), rtol=FLOAT64)


def test_the_method_smooths_as_equation_4_reads():
    rng = np.random.default_rng(1)
    raw = rng.random((1, 20))
    expected = [sum(raw[0, i + t] for t in range(-3, 4) if 0 <= i + t < 20) / 7 for i in range(20)]
    np.testing.assert_allclose(mean_pool(raw, 7, "zero")[0], expected, rtol=FLOAT64)
