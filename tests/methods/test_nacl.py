from itertools import permutations

import numpy as np

from kvlab.reference import methods
from support.build import asked_once, kept, run, stream
from support.tolerances import FLOAT64, MONTE_CARLO


def keep_set(weights, spec, budget):
    """What is kept when the last query is the only proxy, and F its attention."""
    policy = methods.get(spec, budget)
    return kept(policy, *asked_once(policy, weights, prompt=len(weights)))


def test_proxy_part_by_hand():
    """No random part, one sink: of F = .1 .3 .2 .4 the sink and the two largest stay."""
    assert keep_set([0.1, 0.3, 0.2, 0.4], "nacl@sinks=1,random_part=0.0", 3) == [0, 1, 3]
    for seed in range(9):  # a sink with the largest F takes nobody's place; T sharpens F alone
        sinks = f"nacl@sinks=1,random_part=0.0,seed={seed}"
        assert keep_set([0.4, 0.1, 0.2, 0.3], sinks, 3) == [0, 2, 3]
        cold = f"nacl@sinks=0,random_part=1.0,temperature=0.001,seed={seed}"
        assert keep_set([0.1, 0.3, 0.2, 0.4], cold, 2) == [1, 3]


def test_the_proxy_part_is_never_left_to_chance():
    """Room 4, half of it random: the two largest of F stay whatever the seed."""
    weights = [0.3, 0.05, 0.1, 0.05, 0.35, 0.15]
    for seed in range(20):
        spec = f"nacl@sinks=0,random_part=0.5,seed={seed}"
        keep = keep_set(weights, spec, 4)
        assert {0, 4} <= set(keep) and len(keep) == 4


def test_the_draw_is_sampling_without_replacement():
    """Drawing 2 of 3 with Gumbel noise = drawing one by one in proportion to softmax(F)."""
    weights = np.array([0.2, 0.3, 0.5])
    p = np.exp(weights) / np.exp(weights).sum()
    expected = dict.fromkeys([(0, 1), (0, 2), (1, 2)], 0.0)
    for first, second in permutations(range(3), 2):
        pair = (min(first, second), max(first, second))
        expected[pair] += p[first] * p[second] / (1 - p[first])
    trials = 3000
    counts = dict.fromkeys(expected, 0)
    for seed in range(trials):
        spec = f"nacl@sinks=0,random_part=1.0,seed={seed}"
        counts[tuple(keep_set(weights, spec, 2))] += 1
    for pair, share in expected.items():
        error = np.sqrt(share * (1 - share) / trials)
        assert abs(counts[pair] / trials - share) < MONTE_CARLO * error


def test_heads_and_layers_draw_independently_and_repeatably():
    queries, keys, values = stream(np.random.default_rng(10), 2, 1, 4, 40)
    keys[1], values[1], queries[1] = keys[0], values[0], queries[0]
    policy = methods.get("nacl@sinks=0,random_part=1.0,temperature=100.0", 20)
    one, again, other = (
        run(policy, queries, keys, values, prompt=40, layer=layer)[-1].cache.positions
        for layer in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, again)
    assert (one[0] != one[1]).any() and (one != other).any()


def test_proxies_are_summed_and_heads_averaged():
    """Three query heads, equal logits: the last two of four rows give each entry 1/i."""
    queries, policy = np.zeros((1, 3, 4, 1)), methods.get("nacl@proxy_share=0.5", 300)
    (result,) = run(policy, queries, queries[0, :1], queries[0, :1], prompt=4)
    proxy = policy.score.proxy_attention(result.cache.state, result.seen)
    np.testing.assert_allclose(proxy[0], [7 / 12, 7 / 12, 7 / 12, 1 / 4], atol=FLOAT64)


def test_one_percent_of_the_prompt_is_protected():
    policy = methods.get("nacl@sinks=4", 300)
    assert policy.protect.count(1000) == 10 and policy.protect.count(100) == 4
