"""CAOTE's claims hold, can fail, and speak of what `methods/caote.py` computes."""

from fractions import Fraction

import numpy as np
import pytest
from perturbed import MODEL, Perturbations, claim_tests
from tolerances import FLOAT64

from kvlab.reference.methods.caote import (
    eviction_error,
    fast_eviction_error,
    joint_error,
    normalize,
)
from kvlab.reference.proofs import caote as proofs
from kvlab.reference.proofs.caote import PAPER
from kvlab.reference.proofs.observed import observe

PERTURBATIONS: Perturbations = {
    "renormalised_attention": [
        {"after": lambda own, evicted: own / (1 + evicted)},
        {"after": lambda own, evicted: own},
    ],
    "eviction_changes_the_output": [
        {"factor": lambda a: a},
        {"factor": lambda a: a**2 / (1 - a)},
    ],
    "score_is_the_error_in_any_norm": [
        {"score": lambda a, distance: a * distance},
        {"score": lambda a, distance: a / (1 - a) * distance**2},
    ],
    "error_is_a_mean_square": [
        {"measure": lambda x: float(np.linalg.norm(x))},
        {"same_order": lambda x: float(-np.linalg.norm(x))},
    ],
    "printed_formula_in_float32": [
        {"formula": proofs.stable_float32},
        {"stable": proofs.printed_float32},
    ],
    "score_rises_with_attention": [{"factor": lambda h: h * (1 - h)}],
    "attention_and_caote_disagree": [{"score": lambda alpha, distance: alpha}],
    "grouped_heads_add_in_squares": [{"power": 1}, {"power": 3}],
    "joint_eviction_in_closed_form": [
        {"claimed": lambda s, a, x: s - a * x},
        {"claimed": lambda s, a, x: s / (1 - a)},
    ],
    "joint_error_is_bounded": [{"factor": 0.5}],
    "independent_scores_find_the_best_set": [
        {"evictions": lambda n: (1,)},
        {"reading": lambda n: (2,)},
    ],
    "gap_of_several_evictions": [{"at_most": 0.99}],
    "affine_normalisation_keeps_the_order": [
        {"transform": lambda h, c: h * c},
        {"reading": lambda h, c: h + Fraction(c, 2)},
    ],
    "h2o_scores_sum_to_their_number": [{"total": lambda b: b}, {"total": lambda b: 1}],
    "h2o_scores_after_evictions": [
        {"claimed": lambda b, now: now.tokens - now.evicted},
        {"reading": lambda b, now: now.tokens},
    ],
    "block_scores_exceed_one": [
        {"exceeds": lambda m: m > 1},
        {"total": lambda m: m + 1},
    ],
    "fast_score_is_exact_for_equal_attention": [
        {"mean": lambda v: sum(v, Fraction(0)) / (len(v) + 1)}
    ],
    "fast_score_is_bounded": [{"factor": 0.5}],
    "fast_score_ranks_alike": [{"at_least": 0.99}],
    "fast_score_is_cheaper_by_the_width": [
        {"ratio": lambda d: Fraction(1)},
        {"saved": lambda n, d: 2 * n * d},
    ],
    "logit_error_of_one_head": [{"claimed": lambda net: -net.vocabulary @ net.out}],
    "logit_error_of_several_heads": [{"claimed": lambda net: 3 * net.vocabulary @ net.out}],
    "logit_error_with_feed_forward": [
        {"claimed": lambda net: net.vocabulary @ net.out},
        {"claimed": lambda net: net.vocabulary @ net.feed_forward @ net.out},
    ],
    "smaller_error_means_smaller_logit_error": [
        {"matrices": [(1, 1), (2, 2)]},
        {"bound": lambda W: float(np.linalg.norm(W, 2)) / 2},
    ],
    "perplexity_always_improves": [
        {"table": {"rows that improve": (2.0, 1.0, 1.0)}},
        {"mostly": 1.0},
    ],
    "longbench_always_improves": [
        {"table": {"rows that improve": (1.0, 2.0, 2.0)}},
        {"mostly": 1.0},
    ],
    "named_winners_are_the_best": [{"winners": {"one table": ("a", {"a": 2.0, "b": 1.0})}}],
}


(
    test_claims_hold,
    test_every_claim_is_perturbed,
    test_perturbed_claims_are_falsified,
) = claim_tests(PAPER, PERTURBATIONS)


# --- ties: the methods compute what the claims speak of ------------------------------------------


def random_cache(seed):
    rng = np.random.default_rng(seed)
    logits, values = 2 * rng.normal(size=9), rng.normal(size=(9, 4))
    return logits, proofs.softmax(logits), values


def real_caches():
    for head in observe(MODEL)[::3]:
        for query in (50, 120, 200):
            logits = head.keys[: query + 1] @ head.queries[query] / np.sqrt(head.keys.shape[1])
            yield logits, proofs.softmax(logits), head.values[: query + 1]


@pytest.mark.parametrize("cache", [*map(random_cache, range(20)), *real_caches()])
def test_the_method_scores_the_change_of_the_output(cache):
    logits, alpha, values = cache
    scores = eviction_error(alpha, values)
    everything = alpha @ values
    for j in (0, len(alpha) // 2, len(alpha) - 1, int(alpha.argmax())):
        error = np.linalg.norm(everything - proofs.output_without(logits, values, [j]))
        assert scores[j] == pytest.approx(error, rel=FLOAT64, abs=FLOAT64)


@pytest.mark.parametrize("seed", range(20))
def test_the_method_scores_sets_by_their_joint_change(seed):
    _, alpha, values = random_cache(seed)
    evicted = np.random.default_rng(seed).random(9) < 0.4
    error = proofs.joint_error(alpha, values, evicted[None])[0]
    assert joint_error(alpha, values, evicted) == pytest.approx(error, rel=FLOAT64, abs=FLOAT64)


@pytest.mark.parametrize("seed", range(10))
def test_the_method_takes_the_mean_of_the_values_where_it_is_fast(seed):
    _, alpha, values = random_cache(seed)
    printed = proofs.printed(alpha, np.linalg.norm(values.mean(axis=0) - values, axis=1))
    np.testing.assert_allclose(fast_eviction_error(alpha, values), printed, rtol=FLOAT64)


def test_the_method_divides_by_the_sum():
    scores = np.array([1.0, 2, 5])
    h = [Fraction(s, 8) for s in (1, 2, 5)]
    np.testing.assert_allclose(normalize(scores), [float(x) for x in h], rtol=FLOAT64)
