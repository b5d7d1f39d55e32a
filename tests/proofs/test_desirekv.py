"""DesireKV's claims hold, can fail, and speak of what the methods and quantisers compute."""

from fractions import Fraction

import numpy as np
import pytest
from perturbed import MODEL, Perturbations, claim_tests
from tolerances import FLOAT16_METADATA, FLOAT64

from kvlab.reference import methods
from kvlab.reference.methods import desirekv as method
from kvlab.reference.policy import Block, Clock, empty_cache, step
from kvlab.reference.proofs import desirekv as proofs
from kvlab.reference.proofs.desirekv import PAPER
from kvlab.reference.proofs.observed import observe
from kvlab.reference.quantization import quantize
from kvlab.reference.windows import mean_pool


def correct_table():
    """Table 3 with every loss and average as its scores have it."""
    table = {}
    for name, (row, _) in proofs.TABLE_3.items():
        baseline = proofs.BASELINE[name.split()[0]]
        losses = [100 * (1 - s / full) for (s, _), full in zip(row, baseline, strict=True)]
        scores = [score for score, _ in row]
        table[name] = tuple(zip(scores, losses, strict=True)), float(np.mean(losses))
    return table


PERTURBATIONS: Perturbations = {
    "memory_grows_quadratically": [
        {"memory": lambda t: t**2},
        {"reading": lambda t: t**2},
    ],
    "memory_of_the_example": [{"printed": 34.36}, {"reading": 68.7}, {"tokens": 31281}],
    "saving_of_the_whole": [{"bits": 4.0}, {"printed": 0.6}],
    "savings_add_up": [{"further": 0.2}, {"printed": 0.6}],
    "printed_smoothing_depends_on_the_token": [
        {"printed": lambda x, i, w: x[i]},
        {"reading": lambda x, i, w: x[i]},
    ],
    "fences_follow_scale_and_shift": [
        {"power": 2},
        {"marked": lambda block: [j for j, x in enumerate(block) if x > 3]},
        {"score": lambda block: proofs.outlier_score(block) + 1},
    ],
    "score_counts_outliers": [
        {"score": proofs.outlier_mass},
        {"reading": proofs.outlier_score},
    ],
    "gaussian_values_beyond_the_fences": [
        {"rate": lambda factor: 0.01},
        {"factor": 3.0, "rate": lambda factor: 0.00698},
    ],
    "error_is_at_most_half_a_step": [
        {"bound": Fraction(1, 3), "bits": (2,)},
        {"rounding": Fraction(0), "bits": (2,)},
    ],
    "outlier_score_tells_the_error": [
        {"at_least": 0.9},
        {"score": lambda block: -proofs.outlier_score(block)},
    ],
    "importance_and_sensitivity_are_unrelated": [{"at_most": 0.01}],
    "medians_balance_opposite_quadrants": [{"balanced": lambda q: q["Q1"] == q["Q2"]}],
    "quadrant_bits_give_the_printed_averages": [
        {"high": 16},
        {"low": 2},
        {"printed": {0.25: 3.5}},
    ],
    "bits_are_counted_alike": [
        {"printed": {"DDKS": (5.5, 5.5), "K4V4": (4.0, 4.0)}},
        {"overhead": lambda g: 64 / g},
    ],
    "protective_sampling_saves": [{"overhead": 0.0}, {"printed": (0.6, 0.6)}],
    "compression_exceeds_five_and_a_half": [{"bits": {"both": 2.9}}, {"reading": 5.4}],
    "losses_follow_from_the_scores": [{"table": correct_table()}],
    "average_losses_are_averages": [{"table": correct_table()}],
    "aime_scores_lie_on_the_grid": [
        {"corrected": {0.5343: 0.5333, 0.3586: 0.3583}},
        {"samples": 30},
    ],
}


(
    test_claims_hold,
    test_every_claim_is_perturbed,
    test_perturbed_claims_are_falsified,
) = claim_tests(PAPER, PERTURBATIONS)


# --- ties: methods and quantisers compute what the claims speak of -------------------------------


def keys():
    rng = np.random.default_rng(0)
    return [*rng.standard_t(3, size=(20, 32)), *(head.keys[40] for head in observe(MODEL))]


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


def test_the_method_smooths_as_equation_4_reads():
    rng = np.random.default_rng(1)
    raw = rng.random((1, 20))
    expected = [sum(raw[0, i + t] for t in range(-3, 4) if 0 <= i + t < 20) / 7 for i in range(20)]
    np.testing.assert_allclose(mean_pool(raw, 7, "zero")[0], expected, rtol=FLOAT64)
