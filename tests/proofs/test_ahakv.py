"""AhaKV's claims hold, can fail, and speak of what `methods/ahakv.py` computes."""

from fractions import Fraction
from math import log, sqrt

import numpy as np
import pytest
import sympy
from perturbed import MODEL, Perturbations, claim_tests
from prompted import scores_after_prompt
from tolerances import FLOAT64

from kvlab.reference.proofs import ahakv as proofs
from kvlab.reference.proofs.ahakv import PAPER
from kvlab.reference.proofs.observed import observe

PERTURBATIONS: Perturbations = {
    "accumulated_attention_falls_with_position": [
        {"difference": lambda j: Fraction(-1, j + 1)},
        {"difference": lambda j: Fraction(-1, j**2)},
    ],
    "averaging_keeps_the_bias": [
        {"rows": lambda n, j: proofs.harmonic(n) - proofs.harmonic(j - 1), "largest": 20}
    ],
    "recent_rows_have_no_bias": [
        {"first_row": lambda n, r: 1},
        {"first_row": lambda n, r: n - r},
    ],
    "recent_sum_has_r_rows": [
        {"first_row": lambda n, r: n - r + 1},
        {"reading": lambda n, r: n - r + 2},
    ],
    "sharpening_lessens_the_bias": [
        {"expectation": lambda row, g: [Fraction(g * w, sum(row)) for w in row]},
        {"spread_rises": False},
    ],
    "positions_are_exchangeable": [{"tolerance": 1.0}, {"falls": 1}],
    "entropy_of_gaussian_logits": [
        {"formula": lambda i, s2: log(i) - s2, "draws": 100},
        {"formula": lambda i, s2: log(i) - s2 / 4, "draws": 100},
    ],
    "frozen_entropy": [
        {"exponent": lambda i, s: sqrt(2 * log(i)) / s / 2, "draws": 100},
        {"exponent": lambda i, s: 1 / s, "draws": 100},
    ],
    "entropy_of_unscaled_products": [
        {"deviation": lambda d: 1.0, "formula": lambda i, d: log(i) - 0.5},
        {"reading": lambda i, d: log(i) - 1},
    ],
    "lambda_solves_for_the_budget": [
        {"scale": lambda i, k, d: sympy.sqrt(sympy.log(i / k) / d)},
        {"scale": lambda i, k, d: 2 * sympy.log(i / k) / d},
    ],
    "lambda_multiplies_the_scaled_logits": [
        {"deviation": lambda gain, d: gain},
        {"reading": lambda gain, d: gain / 2},
    ],
    "gain_reaches_the_budget": [
        {"gain": lambda i, k: sqrt(log(i / k)), "draws": 50},
        {"trusted": 0.5},
    ],
    "exponential_of_entropy_counts_the_budget": [
        {"sizes": ((4096, 1000),), "draws": 100},
        {"least": 1.0, "draws": 100},
    ],
    "collision_number": [
        {"claimed": lambda i, k: k},
        {"claimed": lambda i, k: k * k / (2 * i)},
    ],
    "any_logits_of_unit_variance_will_do": [
        {"samplers": {"Gaussian": proofs.UNIT_VARIANCE["Gaussian"]}},
        {"reading_deviation": 2.0},
    ],
    "gain_does_not_depend_on_the_variance": [
        {"gain": lambda x, target: target / float(x.std())},
        {"reading": lambda x, target: target / float(x.std()) ** 2},
    ],
    "gain_always_sharpens": [
        {"gain": lambda i, k: 1 + sympy.sqrt(2 * sympy.log(i / k)), "k": 100},
        {"least_ratio": 2.0, "k": 100},
    ],
    "budget_stays_effective_while_decoding": [
        {"tokens": lambda t, B: {1000: 518, 2048: 255, 4096: 134, 32768: 32}[t]},
        {"reading": lambda t, B: B / t},
    ],
    "value_prior_has_no_scale": [
        {"prior": lambda values: proofs.value_prior(values) * np.abs(values).max()},
        {"prior": lambda values: proofs.value_prior(values) / 2},
    ],
    "square_and_norm_agree": [{"powers": (2, 2)}, {"reading_kernel": 5}],
}


(
    test_claims_hold,
    test_every_claim_is_perturbed,
    test_perturbed_claims_are_falsified,
) = claim_tests(PAPER, PERTURBATIONS)


# --- ties: the method computes what the claims speak of ------------------------------------------


def defined_scores(queries, keys, values, k, r):
    """Ŝ of Eq. 5 and 12-15, row by row."""
    t, d = keys.shape
    total = np.zeros(t)
    for i in range(t - r + 1, t + 1):
        logits = keys[:i] @ queries[i - 1] / np.sqrt(d)
        total[:i] += proofs.softmax(logits * (proofs.step_gain(i, k) if i > k else 1.0))
    return total * proofs.value_prior(values)


def random_head(seed):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=(40, 8)) for _ in range(3))


def real_heads():
    return [(head.queries, head.keys, head.values) for head in observe(MODEL)[::4]]


@pytest.mark.parametrize("head", [*map(random_head, range(5)), *real_heads()])
def test_the_method_scores_by_equations_5_and_12_to_15(head):
    k, r = 30, 8
    scores = scores_after_prompt(f"ahakv@recent={r}", k, *head)
    np.testing.assert_allclose(scores, defined_scores(*head, k, r), rtol=FLOAT64, atol=FLOAT64)
