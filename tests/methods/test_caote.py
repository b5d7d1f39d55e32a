import numpy as np
import pytest
from hypothesis import given, strategies as st

from kvlab.reference import methods
from kvlab.reference.cache import State
from kvlab.reference.methods.caote import eviction_error, fast_eviction_error, normalize
from support.build import kept, observation, observe_rows, paying, run, stream
from support.tables import cases
from support.tolerances import DECIMALS, FLOAT64


def output(h, values, evicted=()):
    """Σ h·v over what is left, renormalised: the definition, computed independently."""
    left = [j for j in range(len(h)) if j not in evicted]
    weights = np.array([h[j] for j in left]) / sum(h[j] for j in left)
    return sum(w * values[j] for w, j in zip(weights, left, strict=True))


def random_case(seed, n=7, d=3):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(n)), rng.normal(size=(n, d))


def test_three_entries_by_hand():
    """α = (½, ¼, ¼), v = (0,0), (4,0), (0,4): X = (1, 1).
    c_0 = (½/½)·√2 = √2; c_1 = c_2 = (¼/¾)·√(9 + 1) = √10/3."""
    h, values = np.array([0.5, 0.25, 0.25]), np.array([[0.0, 0], [4, 0], [0, 4]])
    expected = [np.sqrt(2), np.sqrt(10) / 3, np.sqrt(10) / 3]
    np.testing.assert_allclose(eviction_error(h, values), expected, atol=FLOAT64)
    fast = [1.885618, 0.993808, 0.993808]
    np.testing.assert_allclose(fast_eviction_error(h, values), fast, atol=DECIMALS)


def test_it_disagrees_with_attention_by_hand():
    """α = (.10, .15, .75): attention evicts 0. Its value is far away: c = (.9, .158824, 2.7),
    so CAOTE evicts 1."""
    h, values = np.array([0.10, 0.15, 0.75]), np.array([[10.0, 0], [1, 0], [1, 0]])
    np.testing.assert_allclose(eviction_error(h, values), [0.9, 0.158824, 2.7], atol=DECIMALS)
    seen = observation([h], values=values)
    assert kept(methods.get("tova", 2), State(), seen) == [1, 2]
    assert kept(methods.get("caote:tova", 2), State(), seen) == [0, 2]


@given(st.integers(0, 10**6))
def test_the_score_is_the_eviction_error(seed):
    h, values = random_case(seed)
    suffered = [np.linalg.norm(output(h, values) - output(h, values, {j})) for j in range(len(h))]
    np.testing.assert_allclose(eviction_error(h, values), suffered, atol=FLOAT64)


def test_a_dominant_weight_keeps_its_digits():
    """α_0 = 1 − 2e-17 rounds to 1: its error is the distance to the mean of the others, (0, 2)."""
    h = np.array([1.0, 1e-17, 1e-17])
    values = np.array([[3.0, 2.0], [0.0, 1.0], [0.0, 3.0]])
    error = eviction_error(h, values)
    assert error[0] == pytest.approx(3.0, rel=FLOAT64)
    assert (error[1:] < 1e-15).all() and np.isfinite(fast_eviction_error(h, values)).all()


@pytest.mark.parametrize("error", [eviction_error, fast_eviction_error])
def test_an_entry_with_all_the_mass_is_evicted_last(error):
    """Without it there is no output: its error is infinite, and that of the others is 0."""
    values = np.array([[3.0, 2.0], [0.0, 1.0], [3.0, 3.0]])
    alone = np.array([1.0, 0.0, 0.0])
    assert error(alone, values).tolist() == [np.inf, 0.0, 0.0]
    assert error(alone, np.tile(values[0], (3, 1))).tolist() == [np.inf, 0.0, 0.0]
    name = "caote" if error is eviction_error else "fast_caote"
    assert kept(methods.get(f"{name}:tova", 2), State(), observation([alone], values=values)) == [
        0,
        2,
    ]


@pytest.mark.parametrize("error", [eviction_error, fast_eviction_error])
def test_equal_entries_have_exactly_equal_errors(error):
    """Of equal scores the later stays: a difference in the last digit would decide instead."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        h, values = random_case(rng, 7)
        order = rng.permutation(np.tile(np.arange(7), 3))
        errors = error(h[order] / 3, values[order])
        for entry in range(7):
            assert len(set(errors[order == entry])) == 1


@pytest.mark.parametrize("error", [eviction_error, fast_eviction_error])
def test_equal_values_leave_errors_of_rounding(error):
    """Exactly they are 0: of unequal weights rounding decides, and not for the oldest alone."""
    weights, value = np.random.default_rng(0).dirichlet(np.ones(9), size=20), np.array([0.3, -0.7])
    errors = error(weights, np.tile(value, (20, 9, 1)))
    assert (errors <= FLOAT64 * np.linalg.norm(value)).all()
    assert len(set(errors.argmin(axis=1))) > 1


@pytest.mark.parametrize(
    ("several", "stay"), [("independent", [0, 2]), ("sequential", [0, 3]), ("joint_greedy", [2, 3])]
)
def test_two_of_four_are_evicted_by_hand(several, stay):
    """h = (2, 1, 4, 1)/8, v = (3, −2, 2, −2): X = 10/8. Errors ⅓·1.75 = .583, 1/7·3.25 = .464,
    1·.75 = .75, .464: 1 and 3 have the least. First 1 alone, of equal ones the earlier; then
    sequential: h = (2, 4, 1)/7, X = 12/7: ⅖·9/7 = .514, 4/3·2/7 = .381, 1/6·26/7 = .619, so 2;
    jointly: without 1 and 0, 2 or 3 X is 6/5, 4/3 or 14/6: 6/5 is nearest to 10/8, so 0."""
    seen = observation([np.array([2, 1, 4, 1]) / 8], values=[3.0, -2, 2, -2])
    assert kept(methods.get(f"caote:tova@several={several}", 2), State(), seen) == stay


@pytest.mark.parametrize(
    ("several", "stay"), [("sequential", [0, 2, 4]), ("joint_greedy", [0, 3, 4])]
)
def test_protected_entries_count_and_are_not_evicted_by_hand(several, stay):
    """h = (1, 2, 2, 1, 1)/7, v = (0, 1, 4, −2, 4), first and last protected: X = 12/7. Without 1, 2
    or 3 X is 2, 4/5 or 7/3: 1 is evicted. Then X is 2/3 without 2 and 3 without 3: from 12/7 it is
    22/21 and 27/21 away, so 2; from the 2 that is left 4/3 and 1, so 3."""
    seen = observation([np.array([1, 2, 2, 1, 1]) / 7], values=[0.0, 1, 4, -2, 4])
    policy = methods.get(f"caote:tova@several={several},sinks=1,recent=1", 3)
    assert kept(policy, State(), seen) == stay


def test_the_plain_mean_is_of_all_present_values():
    """The newest entry is protected, and has no share of h = (⅔, ⅓, 0) over the candidates; its
    value counts: mean (2, 2), errors 2·‖(2, 2)‖ and ½·‖(−4, 2)‖."""
    seen = observation([[0.5, 0.25, 0.25]], values=[[0.0, 0], [6, 0], [0, 6]])
    policy = methods.get("fast_caote:tova@recent=1,normalize_over=candidates", 2)
    score = policy.score.score(State(), seen, ~policy.protect.protected(seen), 1)
    np.testing.assert_allclose(score[0, :2], [2 * np.sqrt(8), np.sqrt(20) / 2], atol=FLOAT64)


def test_heads_are_averaged_before_their_shares_by_hand():
    """Heads .2 .2 and .6 .2 among the candidates: mean .4 .2, so h = (⅔, ⅓), where the mean of
    their shares would be (⅝, ⅜). X = 1; errors 2·1 and ½·2."""
    seen = observation([[[[0.2, 0.2, 0.6]], [[0.6, 0.2, 0.2]]]], values=[0.0, 3, 9])
    policy = methods.get("caote:tova@recent=1,heads=attention,normalize_over=candidates", 2)
    score = policy.score.score(State(), seen, ~policy.protect.protected(seen), 1)
    np.testing.assert_allclose(score[0, :2], [2, 1], atol=FLOAT64)


def test_errors_are_pooled_among_the_candidates_by_hand():
    """Errors √2, √10/3 | √10/3, as above, the last protected: (√2 + √10/3)/3 of both others."""
    seen = observation([[0.5, 0.25, 0.25]], values=[[0.0, 0], [4, 0], [0, 4]])
    policy = methods.get("caote:tova@recent=1,pool=3", 2)
    score = policy.score.score(State(), seen, ~policy.protect.protected(seen), 1)
    np.testing.assert_allclose(score[0, :2], (np.sqrt(2) + np.sqrt(10) / 3) / 3, atol=FLOAT64)


def test_evicted_first_each_query_keeps_its_own_key_by_hand():
    """B = 2 after a prompt of three tokens; the last pays 4, 1, 3 of 8, so TOVA's CAOTE evicts 1.
    Values are unit vectors, so outputs are weights: query 1 keeps ¼ and ¾, its own; query 2 has 4/7
    and 3/7. Errors: with X = (4, 1, 3)/8, ‖X − v‖ = √26/8 for 0, √74/8 for 1, √42/8 for 2; times 1,
    1/7, 3/5: .637, .154, .486."""
    policy = methods.get("caote:tova@evict_before_attend=true", 2)
    (result,) = run(policy, *paying([[1], [1, 3], [4, 1, 3]]), prompt=3)
    errors = np.sqrt([26, 74, 42]) / 8 * [1, 1 / 7, 3 / 5]
    np.testing.assert_allclose(result.decision.scores, [errors], atol=FLOAT64)
    expected = [[1, 0, 0], [1 / 4, 3 / 4, 0], [4 / 7, 0, 3 / 7]]
    np.testing.assert_allclose(result.output[0, 0], expected, atol=FLOAT64)


@given(st.integers(0, 10**6))
def test_joint_greedy_grows_its_set_by_the_exact_error(seed):
    """Of two query heads, whose changes are joined by their L2 norm."""
    (h, values), (other, _) = random_case(seed), random_case(seed + 1)
    seen = observation([[[h], [other]]], values=values)
    policy = methods.get("caote:tova@several=joint_greedy", 4)
    evicted: set[int] = set()
    for _ in range(3):
        costs = {
            j: np.linalg.norm(
                [output(x, values) - output(x, values, evicted | {j}) for x in (h, other)]
            )
            for j in range(7)
            if j not in evicted
        }
        evicted.add(min(costs, key=costs.__getitem__))
    assert kept(policy, State(), seen) == sorted(set(range(7)) - evicted)


@pytest.mark.parametrize("heads", ["l2", "layer"])
@given(seed=st.integers(0, 10**6))
def test_l2_over_query_heads_is_the_change_of_all_their_outputs(heads, seed):
    """Those of a KV head; or of the layer, which decides together, as TOVA's does."""
    rng = np.random.default_rng(seed)
    attention, values = rng.dirichlet(np.ones(5), size=(2, 3, 1)), rng.normal(size=(2, 5, 3))
    policy = methods.get(f"caote:tova@heads={heads}", 4)
    everything = np.ones((2, 5), dtype=bool)
    score = policy.score.score(State(), observation(attention, values=values), everything, 4)
    for g, j in np.ndindex(2, 5):
        change = [
            output(attention[other, r, 0], values[other])
            - output(attention[other, r, 0], values[other], {j})
            for other, r in np.ndindex(2, 3)
            if heads == "layer" or other == g
        ]
        assert score[g, j] == pytest.approx(np.linalg.norm(np.concatenate(change)), abs=FLOAT64)


def test_h2o_sums_are_normalised():
    """S = (1.8, .7, .5) becomes (.6, .7/3, .5/3), of which the score is the eviction error."""
    policy = methods.get("caote:h2o@recent=0", 2)
    state, seen = observe_rows(policy.score, [[1.0], [0.6, 0.4], [0.2, 0.3, 0.5]])
    retention = policy.score.inner.retention(state, seen, np.ones((1, 3), dtype=bool))
    np.testing.assert_allclose(normalize(retention), [[[0.6, 0.7 / 3, 0.5 / 3]]], atol=FLOAT64)
    values = seen.values[0] = np.array([[3.0, 0], [0, 1], [1, 1]])
    whole, *without = (output(retention[0, 0], values, gone) for gone in ((), [0], [1], [2]))
    score = policy.score.score(state, seen, np.ones((1, 3), dtype=bool), 2)
    np.testing.assert_allclose(score[0], np.linalg.norm(np.subtract(without, whole), axis=1))


def test_all_scores_zero_become_uniform():
    np.testing.assert_array_equal(normalize(np.zeros((1, 4))), np.full((1, 4), 0.25))


def test_negative_scores_are_refused():
    with pytest.raises(ValueError, match="at least 0, got a negative one"):
        normalize(np.array([[0.5, -0.1]]))


def test_evict_before_attend_is_the_error_that_the_step_suffers():
    """In the paper's order the output is that of the survivors, and c its distance (Thm 3.2)."""
    queries, keys, values = stream(np.random.default_rng(27), 1, 1, 4, 9)
    spec = "caote:tova@evict_before_attend="
    after = run(methods.get(f"{spec}false", 8), queries, keys, values, prompt=8)[-1]
    before = run(methods.get(f"{spec}true", 8), queries, keys, values, prompt=8)[-1]
    gone = set(range(9)) - set(before.cache.positions[0].tolist())
    if gone == {8}:
        np.testing.assert_array_equal(before.output, after.output)
    else:
        h = after.seen.attention[0, 0, 0]
        suffered = np.linalg.norm(after.output - before.output)
        assert suffered == pytest.approx(eviction_error(h, values[0])[gone.pop()], abs=FLOAT64)


@cases(__file__, "it_says_when_it_evicts_at_other_times_than_what_it_wraps", "spec said")
def test_it_says_when_it_evicts_at_other_times_than_what_it_wraps(spec, said):
    found = methods.notes([spec, spec])
    assert len(found) == len(said)
    assert all(
        note.partition(" alone ")[2].startswith(text)
        for note, text in zip(found, said, strict=True)
    )
