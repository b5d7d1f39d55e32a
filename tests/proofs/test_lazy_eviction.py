"""LazyEviction's claims hold, can fail, and speak of what `methods/lazy_eviction.py` computes."""

import numpy as np
import pytest
import sympy
from perturbed import Perturbations, claim_tests
from tolerances import FLOAT64

from kvlab.reference import methods
from kvlab.reference.methods.lazy_eviction import decreasing
from kvlab.reference.policy import Block, Clock, empty_cache, step
from kvlab.reference.proofs import lazy_eviction as proofs
from kvlab.reference.proofs.lazy_eviction import FORMS, PAPER

PERTURBATIONS: Perturbations = {
    "printed_h2_falls": [
        {"printed": lambda x: 2 / (1 + sympy.exp(x))},
        {"reading": lambda x: 2 / (1 + sympy.exp(-x))},
    ],
    "all_forms_fall_within_the_unit_interval": [
        {"forms": {"exp": lambda x: sympy.exp(x)}},
        {"forms": {"inverse": lambda x: 2 / (1 + x)}},
        {"forms": {"log": lambda x: -sympy.log(1 + x)}},
    ],
    "score_without_recurrence": [{"value": 1}],
    "code_ranks_as_the_paper": [{"code": proofs.importance}, {"same_interval": False}],
    "readings_keep_the_same_entries": [
        {"other": proofs.importance},
        {"reading": proofs.printed_importance},
    ],
    "recurring_tokens_are_retained": [
        {"score": lambda mri, elapsed: float(elapsed < mri)},
        {"reading": lambda mri, elapsed: proofs.importance(mri, elapsed) - 2 * (elapsed < mri)},
    ],
    "recursion_tracks_the_longest_gap": [
        {"words": lambda active, born: (proofs.longest_gap(active, born)[0], len(active))},
        {"words": lambda active, born: proofs.longest_gap(active, born + 1)},
    ],
    "limits_of_the_threshold": [{"always": (1, 1)}, {"always": (2, 0)}, {"never": 1}],
    "half_precision_holds_step_numbers": [
        {"stored": np.int32},
        {"reading": np.float16},
    ],
    "importance_recurs": [{"at_least": 0.9}, {"threshold": 2.0}],
    "cache_stays_within_budget_and_window": [
        {"bound": lambda prompt, B, W: max(prompt, B) + W - 1},
        {"bound": lambda prompt, B, W: B + W},
    ],
    "printed_condition_holds_the_budget": [
        {"printed": lambda n, B: n > B},
        {"reading": lambda n, B: n > 10 * B},
    ],
    "method_minimises_equation_4": [
        {"keeps": lambda history, errors: errors.index(min(errors))},
        {"reading": lambda history, errors: errors.index(max(errors))},
    ],
    "one_ranking_per_window": [
        {"rankings": dict.fromkeys(proofs.SPECIFICATIONS, lambda W: W)},
        {"updates": 2.0},
    ],
    "every_ranking_takes_b_log_b": [{"cost": lambda B: B - 1}, {"least": lambda B: B}],
    "method_is_best_everywhere": [{"table": {"won": (1.0, 2.0)}}, {"mostly": 0.9}],
    "method_beats_the_full_cache": [{"table": {"won": (1.0, 2.0)}}, {"mostly": 0.5}],
    "throughput_is_the_inverse_of_latency": [{"tolerance": 0.1}],
    "printed_differences_are_differences": [{"table": {"right": (85.4, 84.2, -1.2)}}],
}


(
    test_claims_hold,
    test_every_claim_is_perturbed,
    test_perturbed_claims_are_falsified,
) = claim_tests(PAPER, PERTURBATIONS)


# --- ties: the method computes what the claims speak of ------------------------------------------


@pytest.mark.parametrize("name", FORMS)
def test_the_methods_forms_are_those_of_the_proof(name):
    x = sympy.symbols("x")
    grid = np.array([0.0, 0.5, 1, 3, 10])
    expected = [float(FORMS[name](x).subs(x, at)) for at in grid]
    np.testing.assert_allclose(decreasing(name)(grid), expected, rtol=FLOAT64)


@pytest.mark.parametrize(
    ("options", "formula"),
    [
        ("", proofs.importance),
        (",h2_reading=printed", proofs.printed_importance),
        (",official=true", proofs.official_importance),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_method_tracks_and_scores_by_equations_1_and_2(options, formula, seed):
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
    for j in range(prompt + generated):
        born = max(1, j - prompt + 1)
        active = [bool(row[j] >= threshold) for row in rows[prompt + born - 1 :]]
        stamp, interval = proofs.track(active, born)
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
