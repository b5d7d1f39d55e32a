import numpy as np
import pytest

from kvlab.reference import methods
from kvlab.reference.attention import logits
from kvlab.reference.methods.ahakv import AhaKV, SharpenedRecentAttention, spread
from support.build import looking, observation, paying, run
from support.tables import cases
from support.tolerances import FLOAT64


def gain(i: int, k: int, **options) -> float:
    seen = observation(np.full((1, 3), 1 / 3), prompt=10**9, seen=i)
    score = SharpenedRecentAttention(AhaKV(**options), k)
    raw = logits(seen.queries, seen.keys)
    factors = score.factors(raw, np.ones(raw.shape, bool), np.array([i - 1]), seen)
    return float(factors.ravel()[0])


@cases(__file__, "gain_by_hand", "i k options expected")
def test_gain_by_hand(i, k, options, expected):
    """√(2 ln(i/k)), the factor on the usual logits."""
    found = gain(i, k, **options)
    assert found == pytest.approx(expected, abs=0 if expected == 1.0 else 5e-5)


def test_each_row_has_its_own_gain_and_only_visible_logits_spread():
    """k = 2: √(2 ln 3/2) of the third token, √(2 ln 2) of the fourth. Logits 1 and 3 are 1 from
    their mean, whatever stands where a row may not look."""
    seen, score = looking(np.ones((1, 1, 2, 4))), SharpenedRecentAttention(AhaKV(), 2)
    raw = seen.logits(seen.queries)
    factors = score.factors(raw, np.ones(raw.shape, bool), np.array([2, 3]), seen)
    np.testing.assert_allclose(factors.ravel(), np.sqrt(2 * np.log([1.5, 2])), atol=FLOAT64)
    row, mask = np.array([[[[1.0, 3.0, 100.0]]]]), np.array([[[[True, True, False]]]])
    np.testing.assert_allclose(spread(row, mask), 1.0, atol=FLOAT64)


def test_value_prior_by_hand():
    """‖v‖² = 9, 0, 0, 36; mean of the real neighbours, κ = 3: 4.5, 3, 12, 18; relative to 18."""
    score = methods.get("ahakv@kernel=3", 40).score
    values = np.array([[[3.0, 0], [0, 0], [0, 0], [0, 6]]])
    np.testing.assert_allclose(score.prior(values), [[0.25, 1 / 6, 2 / 3, 1.0]], atol=FLOAT64)
    np.testing.assert_allclose(score.prior(values / 9), score.prior(values), atol=FLOAT64)
    np.testing.assert_array_equal(score.prior(0 * values), np.ones((1, 4)))
    norm = methods.get("ahakv@kernel=1,value_prior=norm", 40).score
    np.testing.assert_allclose(norm.prior(values), [[0.5, 0, 0, 1.0]], atol=FLOAT64)


def test_accumulation_leans_to_the_first_tokens_and_recent_accumulation_does_not():
    """Logits all equal: H2O's sums are H_n − H_{j−1}; r rows give every candidate the same."""
    n, r = 12, 3
    queries, keys, values = np.zeros((1, 2, n, 2)), np.zeros((1, n, 2)), np.ones((1, n, 2))
    h2o = run(methods.get("h2o", n), queries, keys, values, prompt=n)[0]
    harmonic = np.cumsum([0, *(1 / np.arange(1, n + 1))])
    expected = harmonic[n] - harmonic[:n]
    np.testing.assert_allclose(h2o.cache.state.entries["accumulated"][0], expected, atol=FLOAT64)
    policy = methods.get(f"ahakv@recent={r},value_prior=none", n)
    for block in (None, 5):  # the last block has two tokens
        aha = run(policy, queries, keys, values, n, block)[-1]
        recent = policy.score.accumulated(aha.cache.state, aha.seen)[0, : n - r]
        np.testing.assert_allclose(recent, harmonic[n] - harmonic[n - r], atol=FLOAT64)


def run_sharpened(**how):
    """Run AhaKV with k = 2, which sums all rows; the newest entry is protected."""
    queries, keys, values = paying([[1], [1, 3], [1, 1, 4], [1, 1, 2, 1]])
    for i in (2, 3):
        queries[:, :, i] /= np.sqrt(2 * np.log((i + 1) / 2))
    policy = methods.get("ahakv@accumulation=all,recent=1,value_prior=none", 2)
    return run(policy, queries, keys, values, **how)


def test_every_row_counts_where_all_are_summed_by_hand():
    """k = 2. Rows (1), (1, 3)/4 without gain, (1, 1, 4)/6 and (1, ·, 2, 1)/4 sharpened; the newest
    entry is protected. S = 1 + 1/4 + 1/6, 3/4 + 1/6, 4/6: 1 is evicted. Then S = 5/3, 7/6, 1/4."""
    *_, first, second = run_sharpened(prompt=2)
    np.testing.assert_allclose(first.decision.scores, [[17 / 12, 11 / 12, 4 / 6]], atol=FLOAT64)
    assert second.seen.positions.tolist() == [[0, 2, 3]]
    np.testing.assert_allclose(second.decision.scores, [[5 / 3, 7 / 6, 1 / 4]], atol=FLOAT64)


def test_rows_of_several_blocks_of_the_prompt_are_summed_by_hand():
    """The same rows, now all of the prompt, in two blocks: the last sees four entries and pays
    (1, 1, 2, 1)/5. S = 1 + 1/4 + 1/6 + 1/5, 3/4 + 1/6 + 1/5, 4/6 + 2/5; the newest is protected."""
    *_, last = run_sharpened(prompt=4, block=2)
    expected = [97 / 60, 67 / 60, 16 / 15, 1 / 5]
    np.testing.assert_allclose(last.decision.scores, [expected], atol=FLOAT64)


def test_a_measured_gain_is_divided_before_its_floor():
    keys = np.random.default_rng(34).normal(size=(1, 30, 1))
    score = SharpenedRecentAttention(AhaKV(gain="measured", gain_floor=9.0), 10)
    seen = observation(np.full((1, 30), 1 / 30), keys=keys, prompt=30)
    found = score.sharpened(np.ones((1, 1, 1, 1)), np.array([29]), seen)
    expected = np.exp(9 * keys[0, :, 0]) / np.exp(9 * keys).sum()
    np.testing.assert_allclose(found.ravel(), expected, atol=FLOAT64)


def test_measured_gain_is_invariant_under_scale_and_shift_of_the_logits():
    """λ from the row's own spread: 5·x + 3 gives the same attention as x."""
    rng = np.random.default_rng(33)
    keys = rng.normal(size=(1, 30, 1))
    score = SharpenedRecentAttention(AhaKV(gain="measured"), 10)

    def attention(scale, shift):
        seen = observation(np.full((1, 30), 1 / 30), keys=scale * keys + shift, prompt=30)
        return score.sharpened(np.ones((1, 1, 1, 1)), np.array([29]), seen)

    np.testing.assert_allclose(attention(1.0, 0.0), attention(5.0, 3.0), atol=FLOAT64)
    np.testing.assert_allclose(attention(0.0, 1.0), 1 / 30)  # equal logits are left alone


def test_what_i_is_while_decoding():
    """10 tokens of prompt, at token 40 with 8 entries present and k = 4."""
    seen = observation(
        np.full((1, 8), 1 / 8), prompt=10, seen=40, positions=np.arange(32, 40)[None]
    )
    raw = logits(seen.queries, seen.keys)
    mask = np.ones(raw.shape, bool)
    for reading, expected in (
        ("absolute", np.sqrt(2 * np.log(40 / 4))),
        ("cache", np.sqrt(2 * np.log(8 / 4))),
        ("none", 1.0),
    ):
        score = SharpenedRecentAttention(AhaKV(gain_in_decode=reading), 4)
        got = score.factors(raw, mask, np.array([39]), seen)
        assert got.item() == pytest.approx(expected, abs=FLOAT64)
